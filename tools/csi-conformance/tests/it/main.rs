//! The tests of the kit. Those of quotas have a program of their own, because they need another kernel.
#![cfg(target_os = "linux")]

mod faults;
mod inline;
mod memory;
mod program;
mod proxy;
mod support;

mod outside_text;
mod root_mutants;
mod root_program;
mod root_stopped;
