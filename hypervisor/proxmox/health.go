// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const (
	// asideAfter so many failures in a row no machine of the template is placed on the node.
	// A storage that is full is set aside at once: the next clone would fill it again.
	asideAfter = 3
	// asideFirst is for how long, which doubles with each probe that fails, up to asideLast.
	asideFirst = time.Minute
	asideLast  = 15 * time.Minute
)

// reasonAside is that of a machine whose node was set aside before it was made.
const reasonAside = "NodeSetAside"

// health sets aside what machines fail on: a template on a node, since another template may
// well work there and one that is broken must not shut out the others, and a storage that is
// full. When the time is over one machine is placed there as a probe. A template that is set
// aside wherever it could be is used all the same: it is not the nodes' fault then, and claims
// and pools slow down by themselves. It is kept in memory:
// a new process finds out again. The zero value needs a clock.
type health struct {
	clock clock.PassiveClock

	mu   sync.Mutex
	sick map[site]*sickness
}

// site is where machines are made: a template on a node, or a storage, which is NODE/STORAGE
// where it is not shared.
type site struct {
	node     string
	template int
	storage  string
}

type sickness struct {
	failures int
	wait     time.Duration
	// until is when a probe may be made; zero while it is not set aside.
	until time.Time
	// admitted are the owners of machines that are placed there all the same: the probe's, or
	// all where there is nowhere else.
	admitted map[string]bool
	// cause is what the last failure said.
	cause string
}

func nodeSite(node string, template int) site { return site{node: node, template: template} }

func storageSite(gate string) site { return site{storage: gate} }

// text names the place for people.
func (p site) text() string {
	if p.storage != "" {
		return "storage " + p.storage
	}

	return fmt.Sprintf("template %d on node %s", p.template, p.node)
}

// failed notes that a machine failed at a place; at once says that one failure is enough.
func (h *health) failed(at site, cause string, atOnce bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.sick == nil {
		h.sick = map[site]*sickness{}
	}

	s := h.sick[at]
	if s == nil {
		s = &sickness{}
		h.sick[at] = s
	}

	s.failures++
	s.cause = cause

	// What had begun before the place was set aside makes its time no longer.
	already := len(s.admitted) == 0 && h.clock.Now().Before(s.until)
	if already || s.failures < asideAfter && !atOnce {
		return
	}

	s.wait = min(max(2*s.wait, asideFirst), asideLast) //nolint:mnd // it doubles
	s.until, s.admitted = h.clock.Now().Add(s.wait), nil
}

// worked notes that a machine was made at the places.
func (h *health) worked(at ...site) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for _, one := range at {
		delete(h.sick, one)
	}
}

// aside says why no machine of the owner is to be made at one of the places; nothing where one
// may be.
func (h *health) aside(owner string, at ...site) string {
	h.mu.Lock()
	defer h.mu.Unlock()

	now := h.clock.Now()

	for _, one := range at {
		s := h.sick[one]
		if s == nil || s.until.IsZero() || s.admitted[owner] || !now.Before(s.until) {
			continue
		}

		return s.words(one)
	}

	return ""
}

func (s *sickness) words(at site) string {
	times := "once"
	if s.failures > 1 {
		times = fmt.Sprintf("%d times in a row", s.failures)
	}

	again := s.until.UTC().Format(time.TimeOnly + "Z")

	return fmt.Sprintf("%s failed %s and is tried again at %s: %s", at.text(), times, again, s.cause)
}

// admit notes that the owner's machine is placed there. Where that is a probe, since the time
// is over, the others wait for what becomes of it.
func (h *health) admit(owner string, at ...site) {
	h.mu.Lock()
	defer h.mu.Unlock()

	now := h.clock.Now()

	for _, one := range at {
		s := h.sick[one]
		if s == nil || s.until.IsZero() {
			continue
		}

		if s.admitted == nil {
			s.admitted = map[string]bool{}
		}

		s.admitted[owner] = true

		if !now.Before(s.until) {
			s.until = now.Add(s.wait)
		}
	}
}

// troubles says what is set aside of a node.
func (h *health) troubles(node string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()

	var out []string

	for at, s := range h.sick {
		here := at.node == node || strings.HasPrefix(at.storage, node+"/") || at.storage != "" && !strings.Contains(at.storage, "/")
		if here && !s.until.IsZero() {
			out = append(out, s.words(at))
		}
	}

	slices.Sort(out)

	return out
}

// blame has the place of a machine bear a failure, where it is one that another place may not
// have.
func (p *Provider) blame(m *machine, kind hypervisor.Kind, text string) {
	switch kind {
	case hypervisor.NoCapacity:
		if m.at.storage != "" {
			p.health.failed(storageSite(m.at.storage), text, true)
		}
	case "", hypervisor.UnknownOutcome:
		if m.at.template == 0 {
			return // it was made by an earlier process: of what is not known any more
		}

		p.health.failed(nodeSite(m.node, m.at.template), text, false)
	case hypervisor.NotFound, hypervisor.Busy, hypervisor.Rejected, hypervisor.IDTaken, hypervisor.NotOwned, hypervisor.Unavailable:
	}
}

// sites are where a machine is made.
func (m *machine) sites() []site {
	return []site{nodeSite(m.node, m.at.template), storageSite(m.at.storage)}
}
