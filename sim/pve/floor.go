// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import "time"

// FloorInput describes a run of identical jobs, each on a VM of its own.
type FloorInput struct {
	// Jobs are all there at time zero.
	Jobs int `json:"jobs"`
	// CloneSlots is how many clones can be made at the same time: the storages
	// that can clone times the parallel clones of each. 0 means no limit.
	CloneSlots int `json:"cloneSlots"`
	// MaxVMs is how many VMs may exist at the same time; 0 means no limit.
	MaxVMs int `json:"maxVMs"`
	// Clone, Boot, Job and Destroy are what every VM takes.
	Clone   time.Duration `json:"clone"`
	Boot    time.Duration `json:"boot"`
	Job     time.Duration `json:"job"`
	Destroy time.Duration `json:"destroy"`
}

// Floor is the earliest time at which the last job can be done, whatever the
// scheduler: no correct run is faster.
//
// A VM occupies a clone slot while it is cloned and a VM slot until it is
// destroyed. The jobs are identical, so they may be numbered by the start of
// their clones; the i-th clone can then not start before a clone slot has come
// free from clone i-CloneSlots, nor before VM i-MaxVMs has gone. Starting each
// at the later of the two moments meets both bounds with equality, so this
// schedule is optimal. Without a VM limit it is
// ceil(Jobs/CloneSlots)*Clone + Boot + Job.
func Floor(in FloorInput) time.Duration {
	if in.Jobs <= 0 {
		return 0
	}
	start := make([]time.Duration, in.Jobs)
	life := in.Clone + in.Boot + in.Job + in.Destroy
	for i := range start {
		if in.CloneSlots > 0 && i >= in.CloneSlots {
			start[i] = start[i-in.CloneSlots] + in.Clone
		}
		if in.MaxVMs > 0 && i >= in.MaxVMs {
			start[i] = max(start[i], start[i-in.MaxVMs]+life)
		}
	}
	return start[in.Jobs-1] + in.Clone + in.Boot + in.Job
}

// FloorInput is the input of [Floor] for this cluster: what its model says
// about clones, boots and destruction. A linked clone from each storage that
// holds a template is assumed.
func (s *Server) FloorInput(jobs int, job time.Duration) FloorInput {
	s.mu.Lock()
	defer s.mu.Unlock()
	stores := map[storeKey]bool{}
	for _, m := range s.vms {
		if !m.template() {
			continue
		}
		for k, v := range m.conf {
			d, err := parseDrive(v)
			if !isDriveName(k) || err != nil || d.isCDROM() {
				continue
			}
			if st, _ := s.volumeOf(m.node, d.file); st != nil {
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
