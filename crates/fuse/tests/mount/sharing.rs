//! Several processes, and several mounts, at one file.

use crate::world::World;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

fn sh(script: &str) -> Child {
    Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap()
}

#[test]
fn lines_appended_by_many_processes_stay_whole() {
    let Some(mut world) = World::new("") else { return };
    let other = world.mount("other", "");
    let processes: Vec<_> = (0..8)
        .map(|index| {
            let log = if index % 2 == 0 { world.at() } else { other.clone() }.join("log");
            sh(&format!(
                "for i in $(seq 100); do echo \"process {index} line $i\" >>'{}'; done",
                log.display()
            ))
        })
        .collect();
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let text = std::fs::read_to_string(world.at().join("log")).unwrap();
    let lines: HashSet<&str> = text.lines().collect();
    assert_eq!(text.lines().count(), 800);
    for index in 0..8 {
        for line in 1..=100 {
            assert!(lines.contains(format!("process {index} line {line}").as_str()), "{index} {line}");
        }
    }
}

#[test]
fn what_one_mount_writes_the_other_sees_at_once() {
    let Some(mut world) = World::new("") else { return };
    let (here, there) = (world.at(), world.mount("other", ""));
    let mut file = File::create(here.join("f")).unwrap();
    let seen = File::open(there.join("f")).unwrap();
    for round in 0..200_u64 {
        file.write_all(&round.to_le_bytes()).unwrap();
        assert_eq!(seen.metadata().unwrap().len(), (round + 1) * 8);
        let mut back = [0; 8];
        seen.read_exact_at(&mut back, round * 8).unwrap();
        assert_eq!(u64::from_le_bytes(back), round);
        let name = format!("n{round}");
        std::fs::write(there.join(&name), &name).unwrap();
        assert_eq!(std::fs::read_to_string(here.join(&name)).unwrap(), name);
        std::fs::rename(here.join(&name), here.join("moved")).unwrap();
        assert!(!there.join(&name).exists());
        assert_eq!(std::fs::read_to_string(there.join("moved")).unwrap(), name);
    }
    assert_eq!(std::fs::read_dir(&there).unwrap().count(), 2);
}

#[test]
fn disjoint_writers_of_one_file_do_not_disturb_each_other() {
    const BLOCK: usize = 10_000;
    let Some(mut world) = World::new("") else { return };
    let other = world.mount("other", "");
    let path = world.at().join("shared");
    File::create(&path).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..8_usize {
            let path = if writer % 2 == 0 { path.clone() } else { other.join("shared") };
            scope.spawn(move || {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                for round in 0..50 {
                    let block = vec![writer as u8 * 16 + round as u8 % 16; BLOCK];
                    file.write_all_at(&block, ((round * 8 + writer) * BLOCK) as u64).unwrap();
                }
            });
        }
    });
    let all = std::fs::read(&path).unwrap();
    assert_eq!(all.len(), 8 * 50 * BLOCK);
    for (index, block) in all.chunks(BLOCK).enumerate() {
        let expected = (index % 8 * 16 + index / 8 % 16) as u8;
        assert!(block.iter().all(|byte| *byte == expected), "block {index}");
    }
}

#[test]
fn a_large_directory_is_listed_once_and_whole() {
    const FILES: usize = 3000;
    let Some(world) = World::new("") else { return };
    let dir = world.at().join("many");
    std::fs::create_dir(&dir).unwrap();
    for index in 0..FILES {
        File::create(dir.join(format!("entry-number-{index}"))).unwrap();
    }
    let listed: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(listed.len(), FILES);
    assert_eq!(listed.into_iter().collect::<HashSet<_>>().len(), FILES);
    std::fs::remove_dir_all(&dir).unwrap();
}
