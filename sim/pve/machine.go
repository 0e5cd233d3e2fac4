// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"crypto/sha1" // #nosec G505 -- the digest algorithm of Proxmox VE
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// machine is a VM.
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
	lastRun    *guestRun // the last boot; set after power-off too
	memory     int64     // reserved bytes; 0 if the VM does not run
	devices    []string  // the addresses of its PCI devices; empty if the VM does not run
	imageDir   string
	root       string // the guest's root directory; empty until the guest runs a program
	foreign    bool   // exists from the start
	starts     int
	paused     bool
	snapshots  map[string]*snapshot
}

// sighting is the content of the status broadcasts for a VMID from a time on.
type sighting struct {
	time     time.Time
	name     string
	status   string
	template bool
	cpus     int
	mem      int64
	disk     int64
	started  time.Time
}

func (m *machine) isTemplate() bool { return isTrue(m.conf["template"]) }

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

// qmpStatus is the status as QEMU's monitor reports it.
func (m *machine) qmpStatus() string {
	if m.paused {
		return "paused"
	}
	return m.status()
}

func (m *machine) cpus() int {
	return max(1, atoi(m.conf["cores"])) * max(1, atoi(m.conf["sockets"]))
}

// memBytes returns the configured memory. The default is 512 MiB.
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

// digest returns the SHA-1 digest of the configuration.
func (m *machine) digest() string {
	var b strings.Builder
	for _, section := range []map[string]string{m.conf, m.pending} {
		for _, k := range slices.Sorted(maps.Keys(section)) {
			fmt.Fprintf(&b, "%s: %s\n", k, section[k])
		}
		b.WriteString("[PENDING]\n")
	}
	b.WriteString(strings.Join(slices.Sorted(maps.Keys(m.pendingDel)), ","))
	sum := sha1.Sum([]byte(b.String())) // #nosec G401 -- the digest algorithm of Proxmox VE
	return hex.EncodeToString(sum[:])
}

// findVM returns a VM if it is on the node of the call. The caller holds s.mu.
func (s *Server) findVM(node string, vmid int) (*machine, error) {
	m := s.vms[vmid]
	if m == nil || m.node != node {
		return nil, newNoConfigError(node, vmid)
	}
	return m, nil
}

// checkLock returns an error if a task has locked the VM.
func (m *machine) checkLock() error {
	if l := m.conf["lock"]; l != "" {
		return dief("VM is locked (%s)", l)
	}
	return nil
}

// recordSighting records the state of a VM for the next broadcast. The caller holds s.mu.
func (s *Server) recordSighting(m *machine) {
	status := m.status()
	var at time.Time // the VMs of the model are in every broadcast
	if !s.populating {
		at = s.clk.Now()
	}
	s.sightings[m.id] = append(s.sightings[m.id], sighting{
		time: at, name: m.name(), status: status, template: m.isTemplate(),
		cpus: m.cpus(), mem: m.memBytes(), disk: s.bootDiskSize(m), started: m.started,
	})
	const keep = 64
	if h := s.sightings[m.id]; len(h) > keep {
		s.sightings[m.id] = h[len(h)-keep:]
	}
}

// findSighting returns the last sighting before a broadcast. Without a lag, it includes a sighting
// at the time of the broadcast.
func (s *Server) findSighting(vmid int, broadcast time.Time) (sighting, bool) {
	for _, h := range slices.Backward(s.sightings[vmid]) {
		if h.time.Before(broadcast) || s.model.StatusLag <= 0 && !h.time.After(broadcast) {
			return h, true
		}
	}
	return sighting{}, false
}

// broadcastTime returns the time of the last broadcast.
func (s *Server) broadcastTime() time.Time {
	now := s.clk.Now()
	lag := s.model.StatusLag
	if lag <= 0 {
		return now
	}
	return now.Add(-(now.Sub(s.started) % lag))
}

// bootDiskSize returns the size of the first disk. The caller holds s.mu.
func (s *Server) bootDiskSize(m *machine) int64 {
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
