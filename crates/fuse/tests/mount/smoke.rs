//! Does it mount at all?

use crate::world::{World, is_mounted};

#[test]
fn what_is_written_is_read() {
    let Some(mut world) = World::new("allow_other") else { return };
    let file = world.at().join("hello");
    std::fs::write(&file, b"hello").unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"hello");
    let other = world.mount("again", "");
    assert_eq!(std::fs::read(other.join("hello")).unwrap(), b"hello");
    if let Ok(secs) = std::env::var("HOLD") {
        eprintln!("{}", world.at().display());
        std::thread::sleep(std::time::Duration::from_secs(secs.parse().unwrap()));
    }
    drop(world);
    assert!(!is_mounted(&other));
}
