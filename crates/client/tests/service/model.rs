//! Random operations through real sockets, restarts between them, against files that are plain vectors.

use crate::world::{By, World, pattern};
use forebay_client::{Client, File, OpenOptions};
use forebay_model::ErrorKind;
use forebay_wire::RenameMode;
use std::collections::BTreeMap;

const SEED: u64 = 0x0040_7e11;
const STEPS: usize = 1200;
const LARGEST: usize = 3 << 20;

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Mostly small, sometimes large.
    fn size(&mut self, bound: usize) -> usize {
        let cut = [64, 5000, 70_000, bound][self.below(4)];
        self.below(cut.min(bound) + 1)
    }
}

/// What should be there: names to files, and their bytes. A file stays while it is open, named or not.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, usize>,
    files: Vec<Vec<u8>>,
}

struct Driver {
    world: World,
    clients: Vec<Client>,
    open: Vec<(File, usize)>,
    model: Model,
    dice: Dice,
}

impl Driver {
    async fn step(&mut self) {
        let name = format!("/n{}", self.dice.below(6));
        let client = self.clients[self.dice.below(2)].clone();
        match self.dice.below(20) {
            0 => self.world.restart().await,
            1..4 => self.open(&client, &name).await,
            4 => self.unlink(&client, &name).await,
            5 => self.rename(&client, &name).await,
            6 if !self.open.is_empty() => {
                let (file, _) = self.open.swap_remove(self.dice.below(self.open.len()));
                file.close().await.unwrap();
            }
            _ if !self.open.is_empty() => self.change().await,
            _ => {}
        }
    }

    async fn open(&mut self, client: &Client, name: &str) {
        if self.open.len() >= 8 {
            return;
        }
        let create = OpenOptions { truncate: false, ..OpenOptions::CREATE };
        let options =
            [OpenOptions::WRITE, create, OpenOptions::CREATE, OpenOptions::CREATE_NEW][self.dice.below(4)];
        let known = self.model.names.get(name).copied();
        match (client.open(name, options).await, known) {
            (Ok(file), Some(index)) => {
                assert!(!options.create_new, "{name} was there");
                if options.truncate {
                    self.model.files[index].clear();
                }
                self.open.push((file, index));
            }
            (Ok(file), None) => {
                assert!(options.create || options.create_new, "{name} was not there");
                self.model.names.insert(name.to_owned(), self.model.files.len());
                self.open.push((file, self.model.files.len()));
                self.model.files.push(Vec::new());
            }
            (Err(error), Some(_)) => {
                assert_eq!((error.kind(), options.create_new), (ErrorKind::Exists, true));
            }
            (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
        }
    }

    async fn unlink(&mut self, client: &Client, name: &str) {
        match (client.unlink(name).await, self.model.names.remove(name)) {
            (Ok(()), Some(_)) => {}
            (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
            (done, known) => panic!("unlink {name}: {done:?} where the model has {known:?}"),
        }
    }

    async fn rename(&mut self, client: &Client, name: &str) {
        let to = format!("/n{}", self.dice.below(6));
        let done = client.rename(name, &to, RenameMode::Replace).await;
        match (done, self.model.names.get(name).copied()) {
            (Ok(()), Some(index)) => {
                self.model.names.remove(name);
                self.model.names.insert(to, index);
            }
            (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
            (done, known) => panic!("rename {name} to {to}: {done:?} where the model has {known:?}"),
        }
    }

    async fn change(&mut self) {
        let (file, index) = &self.open[self.dice.below(self.open.len())];
        let bytes = &mut self.model.files[*index];
        let offset = self.dice.size(LARGEST);
        match self.dice.below(8) {
            0 => {
                file.truncate(offset as u64).await.unwrap();
                bytes.resize(offset, 0);
            }
            1 => {
                let len = 1 + self.dice.size(LARGEST);
                file.punch(offset as u64, len as u64).await.unwrap();
                let end = bytes.len().min(offset + len);
                bytes[offset.min(end)..end].fill(0);
            }
            2 if bytes.len() < LARGEST => {
                let data = pattern(self.dice.next(), 1 + self.dice.size(100_000));
                assert_eq!(file.append(&data).await.unwrap(), bytes.len() as u64);
                bytes.extend(data);
            }
            3 => file.sync().await.unwrap(),
            4..6 => {
                let mut back = vec![0xaa; self.dice.size(LARGEST)];
                let count = file.pread(offset as u64, &mut back).await.unwrap();
                let start = offset.min(bytes.len());
                let expected = &bytes[start..bytes.len().min(start + back.len())];
                assert!(&back[..count] == expected, "read of {} at {offset} gave {count}", back.len());
            }
            _ => {
                let data = pattern(self.dice.next(), self.dice.size(LARGEST - offset));
                file.pwrite(offset as u64, &data).await.unwrap();
                if !data.is_empty() && bytes.len() < offset + data.len() {
                    bytes.resize(offset + data.len(), 0);
                }
                if !data.is_empty() {
                    bytes[offset..offset + data.len()].copy_from_slice(&data);
                }
            }
        }
        assert_eq!(file.stat().await.unwrap().size, bytes.len() as u64);
    }

    async fn finish(self) {
        for (file, index) in &self.open {
            self.compare(file, &self.model.files[*index]).await;
        }
        for (name, index) in &self.model.names {
            let file = self.clients[0].open(name, OpenOptions::READ).await.unwrap();
            self.compare(&file, &self.model.files[*index]).await;
        }
    }

    async fn compare(&self, file: &File, bytes: &[u8]) {
        let mut back = vec![0; bytes.len() + 1];
        assert_eq!(file.pread(0, &mut back).await.unwrap(), bytes.len());
        assert!(&back[..bytes.len()] == bytes);
    }
}

/// Says which seed failed, however the test ends.
struct Tell(u64);

impl Drop for Tell {
    #[expect(clippy::print_stderr, reason = "a failing test prints its seed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with FOREBAY_SEED={}", self.0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_with_restarts_match_a_model() {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(SEED);
    let _tell = Tell(seed);
    let world = World::new(256);
    let clients = vec![world.client(By::Unix).await, world.client(By::Tcp).await];
    let mut driver = Driver { world, clients, open: Vec::new(), model: Model::default(), dice: Dice(seed) };
    for _ in 0..STEPS {
        driver.step().await;
    }
    driver.finish().await;
}
