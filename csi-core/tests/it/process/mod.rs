//! A driver as a process of its own.

mod program;

mod canary_formats;
mod ends;
