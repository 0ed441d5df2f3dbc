//! Copies between files of Forebay and pipes.

use crate::world::World;
use std::process::Command;

#[test]
fn splice_and_sendfile_behave_as_on_tmpfs() {
    let world = World::new();
    for how in ["library", "dispatch"] {
        let command = |program: &std::path::Path| {
            let mut command = world.command(program);
            command.env("FOREBAY_INTERCEPT", how);
            command
        };
        world.table("splice", how, command, "/fb");
    }
}

#[test]
fn splice_and_sendfile_through_the_mount_behave_as_on_tmpfs() {
    let world = World::new();
    let Some(mount) = world.mounted() else { return };
    world.table("splice", "mount", |program| Command::new(program), mount.path());
}
