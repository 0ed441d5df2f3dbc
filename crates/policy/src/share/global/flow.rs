//! Maximum flow from jobs to servers (Dinic's algorithm on two layers).

use std::collections::VecDeque;

/// A flow network: a source before every job, a sink after every server, and an unlimited edge between a job
/// and each of its servers.
pub(super) struct Flow {
    /// Remaining supply of each job, and remaining capacity of each server.
    supply: Vec<f64>,
    room: Vec<f64>,
    /// Per job: servers and the flow to each.
    edges: Vec<Vec<(usize, f64)>>,
    /// Per server: the jobs with an edge to it, and the index of that edge in the job's list.
    back: Vec<Vec<(usize, usize)>>,
    /// Smaller amounts are rounding errors and count as zero.
    dust: f64,
}

const FAR: usize = usize::MAX;

impl Flow {
    pub(super) fn new(supply: &[f64], room: &[f64], servers: &[Vec<usize>]) -> Flow {
        let mut back = vec![Vec::new(); room.len()];
        for (job, list) in servers.iter().enumerate() {
            for (edge, &server) in list.iter().enumerate() {
                back[server].push((job, edge));
            }
        }
        let edges = servers.iter().map(|list| list.iter().map(|&server| (server, 0.0)).collect()).collect();
        let dust = 1e-13 * room.iter().sum::<f64>();
        Flow { supply: supply.to_vec(), room: room.to_vec(), edges, back, dust }
    }

    /// Starts from a flow that respects supply and capacity.
    pub(super) fn preload(&mut self, flow: &[Vec<f64>]) {
        for (job, list) in flow.iter().enumerate() {
            for (edge, &amount) in list.iter().enumerate() {
                let (server, now) = &mut self.edges[job][edge];
                *now += amount;
                self.supply[job] = (self.supply[job] - amount).max(0.0);
                self.room[*server] = (self.room[*server] - amount).max(0.0);
            }
        }
    }

    /// Computes a maximum flow.
    pub(super) fn run(&mut self) {
        while let Some((jobs, servers)) = self.layers() {
            let mut next = vec![0; self.edges.len()];
            let mut next_back = vec![0; self.back.len()];
            let mut sent = 0.0;
            for job in 0..self.edges.len() {
                while self.supply[job] > self.dust {
                    let got = self.push(job, self.supply[job], &jobs, &servers, &mut next, &mut next_back);
                    if got <= 0.0 {
                        break;
                    }
                    self.supply[job] -= got;
                    sent += got;
                }
            }
            if sent <= self.dust {
                return;
            }
        }
    }

    /// Supply that each job could not send.
    pub(super) fn unsent(&self) -> &[f64] {
        &self.supply
    }

    /// Jobs that could not send their supply, and all jobs whose flow blocks them.
    pub(super) fn stuck(&self) -> Vec<bool> {
        let (jobs, _) = self.distances();
        jobs.iter().map(|&distance| distance != FAR).collect()
    }

    /// Flow along each edge.
    pub(super) fn amounts(&self) -> Vec<Vec<f64>> {
        self.edges.iter().map(|list| list.iter().map(|&(_, amount)| amount).collect()).collect()
    }

    /// Distances from a job with supply to every job and server.
    fn distances(&self) -> (Vec<usize>, Vec<usize>) {
        let mut jobs = vec![FAR; self.edges.len()];
        let mut servers = vec![FAR; self.back.len()];
        let mut queue: VecDeque<usize> = VecDeque::new();
        for (job, &supply) in self.supply.iter().enumerate() {
            if supply > self.dust {
                jobs[job] = 0;
                queue.push_back(job);
            }
        }
        while let Some(job) = queue.pop_front() {
            for &(server, _) in &self.edges[job] {
                if servers[server] != FAR {
                    continue;
                }
                servers[server] = jobs[job] + 1;
                for &(other, edge) in &self.back[server] {
                    if jobs[other] == FAR && self.edges[other][edge].1 > self.dust {
                        jobs[other] = servers[server] + 1;
                        queue.push_back(other);
                    }
                }
            }
        }
        (jobs, servers)
    }

    /// The distances, if an augmenting path is left.
    fn layers(&self) -> Option<(Vec<usize>, Vec<usize>)> {
        let (jobs, servers) = self.distances();
        let open = |(server, &room): (usize, &f64)| room > self.dust && servers[server] != FAR;
        self.room.iter().enumerate().any(open).then_some((jobs, servers))
    }

    /// Sends up to `amount` from a job along increasing layers.
    fn push(
        &mut self,
        job: usize,
        amount: f64,
        jobs: &[usize],
        servers: &[usize],
        next: &mut [usize],
        next_back: &mut [usize],
    ) -> f64 {
        while let Some(&(server, _)) = self.edges[job].get(next[job]) {
            let edge = next[job];
            if servers[server] == jobs[job] + 1 {
                if self.room[server] > self.dust {
                    let got = amount.min(self.room[server]);
                    self.room[server] -= got;
                    self.edges[job][edge].1 += got;
                    return got;
                }
                while let Some(&(other, back)) = self.back[server].get(next_back[server]) {
                    let flow = self.edges[other][back].1;
                    let leads_on = jobs[other] == servers[server] + 1 && flow > self.dust;
                    let got = match leads_on {
                        true => self.push(other, amount.min(flow), jobs, servers, next, next_back),
                        false => 0.0,
                    };
                    if got > 0.0 {
                        self.edges[other][back].1 -= got;
                        self.edges[job][edge].1 += got;
                        return got;
                    }
                    next_back[server] += 1;
                }
            }
            next[job] += 1;
        }
        0.0
    }
}
