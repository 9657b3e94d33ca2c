"""What is measured: txtopo through its public interface, and its peers on the same work. Each runs
in a process of its own."""
