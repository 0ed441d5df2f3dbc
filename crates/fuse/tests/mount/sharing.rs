//! Several processes and several mounts with one file.

use crate::mapped::Mapped;
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
fn lines_appended_by_many_processes_are_not_torn() {
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
fn writes_of_one_mount_are_visible_on_the_other_at_once() {
    let Some(mut world) = World::new("") else { return };
    let (first, second) = (world.at(), world.mount("other", ""));
    let mut file = File::create(first.join("f")).unwrap();
    let seen = File::open(second.join("f")).unwrap();
    for round in 0..200_u64 {
        file.write_all(&round.to_le_bytes()).unwrap();
        assert_eq!(seen.metadata().unwrap().len(), (round + 1) * 8);
        let mut back = [0; 8];
        seen.read_exact_at(&mut back, round * 8).unwrap();
        assert_eq!(u64::from_le_bytes(back), round);
        let name = format!("n{round}");
        std::fs::write(second.join(&name), &name).unwrap();
        assert_eq!(std::fs::read_to_string(first.join(&name)).unwrap(), name);
        std::fs::rename(first.join(&name), first.join("moved")).unwrap();
        assert!(!second.join(&name).exists());
        assert_eq!(std::fs::read_to_string(second.join("moved")).unwrap(), name);
    }
    assert_eq!(std::fs::read_dir(&second).unwrap().count(), 2);
}

#[test]
fn disjoint_writers_of_one_file_do_not_affect_each_other() {
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
fn large_directory_is_listed_completely_without_duplicates() {
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

/// Marks of threads in each page: the first half of the threads store into a mapping, the others write.
const MARKS: usize = 4;
const PAGES: usize = 256;
const PAGE: usize = 4096;

#[test]
fn write_survives_stores_into_the_same_page() {
    let Some(world) = World::new("") else { return };
    for round in 0..4 {
        let path = world.at().join(format!("holes{round}"));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.set_len((PAGES * PAGE) as u64).unwrap();
        std::thread::scope(|scope| {
            for mark in 0..MARKS {
                let file = &file;
                scope.spawn(move || {
                    let mut mapped = Mapped::new(file, PAGES * PAGE);
                    for page in 0..PAGES {
                        let (at, byte) = (page * PAGE + mark * 64, mark as u8 + 1);
                        match mark < MARKS / 2 {
                            true => mapped.bytes()[at] = byte,
                            false => {
                                file.write_all_at(&[byte; 8], at as u64).unwrap();
                                assert_eq!(mapped.bytes()[at], byte, "the mapping shows the write");
                            }
                        }
                    }
                    mapped.sync();
                });
            }
        });
        let bytes = std::fs::read(&path).unwrap();
        let missing = (0..PAGES * MARKS).filter(|at| {
            let (page, mark) = (at / MARKS, at % MARKS);
            bytes[page * PAGE + mark * 64] != mark as u8 + 1
        });
        assert_eq!(missing.collect::<Vec<_>>(), [0_usize; 0], "round {round}: lost marks");
    }
}
