// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import "time"

// FloorInput describes a run of identical jobs, each on a VM of its own.
type FloorInput struct {
	// Jobs is the number of jobs. All jobs exist at time zero.
	Jobs int `json:"jobs"`
	// CloneSlots is the number of clones that can run at the same time: the number of storages with
	// templates times the parallel clones of each. 0 means no limit.
	CloneSlots int `json:"cloneSlots"`
	// MaxVMs is the number of VMs that can exist at the same time. 0 means no limit.
	MaxVMs int `json:"maxVMs"`
	// Clone, Boot, Job and Destroy are the times that each VM needs for these steps.
	Clone   time.Duration `json:"clone"`
	Boot    time.Duration `json:"boot"`
	Job     time.Duration `json:"job"`
	Destroy time.Duration `json:"destroy"`
}

// Floor returns a lower bound: the shortest time in which any scheduler can complete all jobs. No
// correct run is faster.
//
// A VM occupies a clone slot while it is cloned, and a VM slot until it is destroyed. The jobs are
// identical, so they can be numbered by the start of their clones. Clone i can start only when clone
// i-CloneSlots has ended and VM i-MaxVMs has been destroyed. A schedule that starts each clone at
// the later of these two times is therefore optimal. Without a limit of VMs, the result is
// ceil(Jobs/CloneSlots)*Clone + Boot + Job.
func Floor(input FloorInput) time.Duration {
	if input.Jobs <= 0 {
		return 0
	}
	start := make([]time.Duration, input.Jobs)
	lifetime := input.Clone + input.Boot + input.Job + input.Destroy
	for i := range start {
		if input.CloneSlots > 0 && i >= input.CloneSlots {
			start[i] = start[i-input.CloneSlots] + input.Clone
		}
		if input.MaxVMs > 0 && i >= input.MaxVMs {
			start[i] = max(start[i], start[i-input.MaxVMs]+lifetime)
		}
	}
	return start[input.Jobs-1] + input.Clone + input.Boot + input.Job
}

// FloorInput returns the input of [Floor] for this cluster, with the times of the cluster's model.
// It assumes linked clones from every storage that holds a template.
func (s *Server) FloorInput(jobs int, job time.Duration) FloorInput {
	s.mu.Lock()
	defer s.mu.Unlock()
	stores := map[storeKey]bool{}
	for _, m := range s.vms {
		if !m.isTemplate() {
			continue
		}
		for k, v := range m.conf {
			d, err := parseDrive(v)
			if !isDriveName(k) || err != nil || d.isCDROM() {
				continue
			}
			if st, _ := s.findVolume(m.node, d.file); st != nil {
				stores[st.key] = true
			}
		}
	}
	d := s.model.Delays
	return FloorInput{
		Jobs: jobs, CloneSlots: len(stores) * s.model.Limits.ClonesPerStorage, Clone: d.Clone,
		Boot: d.Start + d.Boot, Job: job, Destroy: d.Destroy,
	}
}
