// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"crypto/sha1" // #nosec G505 -- the digest Proxmox uses
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// machine is one VM.
type machine struct {
	id         int
	node       string
	conf       map[string]string
	pending    map[string]string
	pendingDel map[string]bool
	running    bool
	pid        int
	started    time.Time
	guest      *guestRun
	last       *guestRun // the latest boot, also after power-off
	memory     int64     // bytes, while running
	imageDir   string
	root       string // the guest's root directory, once it has run a program
	foreign    bool   // there from the start
	starts     int
	paused     bool
	snapshots  map[string]*snapshot
}

// sighting is what the status broadcast would say of a VMID from a moment on.
type sighting struct {
	at       time.Time
	name     string
	status   string
	template bool
	cpus     int
	mem      int64
	disk     int64
	started  time.Time
}

func (m *machine) template() bool { return truthy(m.conf["template"]) }

func (m *machine) name() string {
	if n := m.conf["name"]; n != "" {
		return n
	}
	return fmt.Sprintf("VM %d", m.id)
}

func (m *machine) status() string {
	if m.running {
		return "running"
	}
	return "stopped"
}

func (m *machine) cpus() int {
	return max(1, atoi(m.conf["cores"])) * max(1, atoi(m.conf["sockets"]))
}

// memBytes is the configured memory; the default is 512 MiB.
func (m *machine) memBytes() int64 {
	const mib = 1 << 20
	text := strings.TrimPrefix(m.conf["memory"], "current=")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		n = 512
	}
	return n * mib
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// digest is the SHA-1 of the configuration file.
func (m *machine) digest() string {
	var b strings.Builder
	for _, section := range []map[string]string{m.conf, m.pending} {
		for _, k := range slices.Sorted(maps.Keys(section)) {
			fmt.Fprintf(&b, "%s: %s\n", k, section[k])
		}
		b.WriteString("[PENDING]\n")
	}
	b.WriteString(strings.Join(slices.Sorted(maps.Keys(m.pendingDel)), ","))
	sum := sha1.Sum([]byte(b.String())) // #nosec G401 -- the digest Proxmox uses
	return hex.EncodeToString(sum[:])
}

// get finds a VM on the node the call is for; s.mu is held.
func (s *Server) get(node string, vmid int) (*machine, error) {
	m := s.vms[vmid]
	if m == nil || m.node != node {
		return nil, noConf(node, vmid)
	}
	return m, nil
}

// checkLock refuses work on a VM that a task has locked.
func (m *machine) checkLock() error {
	if l := m.conf["lock"]; l != "" {
		return dief("VM is locked (%s)", l)
	}
	return nil
}

// sight notes what the next broadcast will say; s.mu is held.
func (s *Server) sight(m *machine) {
	status := m.status()
	var at time.Time // what the model says was seen long ago
	if !s.populating {
		at = s.clk.Now()
	}
	s.seen[m.id] = append(s.seen[m.id], sighting{
		at: at, name: m.name(), status: status, template: m.template(),
		cpus: m.cpus(), mem: m.memBytes(), disk: s.bootDisk(m), started: m.started,
	})
	const keep = 64
	if h := s.seen[m.id]; len(h) > keep {
		s.seen[m.id] = h[len(h)-keep:]
	}
}

// seenAt is the last sighting before a broadcast, or, without lag, the last.
func (s *Server) seenAt(vmid int, at time.Time) (sighting, bool) {
	for _, h := range slices.Backward(s.seen[vmid]) {
		if h.at.Before(at) || s.model.StatusLag <= 0 && !h.at.After(at) {
			return h, true
		}
	}
	return sighting{}, false
}

// broadcastTime is when the last broadcast before now was.
func (s *Server) broadcastTime() time.Time {
	now := s.clk.Now()
	lag := s.model.StatusLag
	if lag <= 0 {
		return now
	}
	return now.Add(-(now.Sub(s.started) % lag))
}

// bootDisk is the size of the first disk; s.mu is held.
func (s *Server) bootDisk(m *machine) int64 {
	for _, k := range slices.Sorted(maps.Keys(m.conf)) {
		if !isDriveName(k) {
			continue
		}
		if d, err := parseDrive(m.conf[k]); err == nil && !d.isCDROM() {
			return parseSize(d.get("size"))
		}
	}
	return 0
}
