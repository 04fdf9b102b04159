/** Constants of the API; api/dashboard/vocabulary.py has written them. */

export const ROLES = ["viewer", "editor", "admin"];
export const UNFINISHED = ["queued", "running"];
export const MAX_LIMIT = 1000;
export const ACCOUNT_NAME = "[A-Za-z0-9][A-Za-z0-9._@\\-]{0,63}";
export const MIN_PASSWORD = 8;
export const MAX_PASSWORD = 256;
export const MAX_KEY_DESCRIPTION = 200;
export const MAX_NOTE = 1000;
export const MAX_RULE_NAME = 200;
export const MAX_RULE_DESCRIPTION = 2000;
export const MAX_SCHEMA_DESCRIPTION = 2000;
export const MAX_REFERENCE_DESCRIPTION = 2000;
export const MAX_TOPICS = 10000;
export const MAX_KEPT_BYTES = 4096;
export const DRAIN_PER_SECOND = 50;
export const MAX_DRAIN_PER_SECOND = 100000;
export const REPLAY_RATE = 1000;
export const REPLAY_CLIENT_RATE = 100;
export const MAX_UINT32 = 4294967295;
export const NEVER_EXPIRES = 4294967295;
