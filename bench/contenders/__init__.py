"""Contenders: txtopo through its public interface, and peers on the same work. Each runs in a
process of its own."""
