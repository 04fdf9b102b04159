"""The Java side: the routing classes' source, how it is compiled, how the JVM is started."""
