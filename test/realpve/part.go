// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package realpve

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
)

// Cluster begins the names of the clusters that operators of tests have: their machines'
// records carry it.
const Cluster = "realpve-"

// Part is a part of a site that one test has for itself: VMIDs, and a name of the cluster
// that makes its operators others than those of other parts.
type Part struct {
	*Site

	// First and Last VMID.
	First, Last int

	name  string
	since time.Time
	t     testing.TB

	mu       sync.Mutex
	occupied map[int]bool
	// marks are what the names of its operators' ISOs begin with.
	marks []string
}

// Part gives a test its part, which is emptied when the test ends.
func (s *Site) Part(t testing.TB) *Part {
	t.Helper()

	n := int(s.parts.Add(1))
	p := &Part{
		Site: s, First: s.first + n*idsOfPart, Last: s.first + (n+1)*idsOfPart - 1,
		name: fmt.Sprintf("%s%d", Cluster, n), since: time.Now(), t: t, occupied: map[int]bool{},
	}

	t.Cleanup(func() {
		if err := p.empty(context.Background()); err != nil {
			t.Error(err)
		}
	})

	return p
}

// Config leads to the site with the operator's account.
func (p *Part) Config() hypervisor.Config {
	config := p.Reach()
	config.Name, config.IDMin, config.IDMax = p.name, p.First, p.Last

	return config
}

// Connect makes a provider, as a new process would.
func (p *Part) Connect(tb testing.TB, options hypervisor.Options) hypervisor.Connection {
	tb.Helper()

	mark := "hf-" + hypervisor.Identity{OperatorUID: options.OperatorUID, Cluster: p.name}.Hash() + "-"

	p.mu.Lock()
	if !slices.Contains(p.marks, mark) {
		p.marks = append(p.marks, mark)
	}
	p.mu.Unlock()
	p.allMarks.Store(mark, true)

	connection, err := proxmox.New(p.Config(), options)
	if err != nil {
		tb.Fatal(err)
	}

	return connection
}

// Inspect tells what is on this part, by the administrator's eyes.
func (p *Part) Inspect() conformance.State {
	p.t.Helper()

	state, err := p.inspect(context.Background())
	if err != nil {
		p.t.Error(err)
	}

	return state
}

func (p *Part) inspect(ctx context.Context) (conformance.State, error) {
	var state conformance.State

	rows, err := p.rows(ctx)
	if err != nil {
		return state, err
	}

	slices.SortFunc(rows, func(a, b row) int { return a.VMID - b.VMID })

	for _, r := range rows {
		if !p.isTemplate(r.VMID) && !p.mine(r.VMID) {
			continue
		}

		config, err := p.config(ctx, r)
		if err != nil || config == nil {
			return state, err
		}

		if p.isTemplate(r.VMID) || p.isOccupied(r.VMID) {
			state.Foreign += fmt.Sprintf("%d %s\n", r.VMID, text(config))

			continue
		}

		seen, err := p.seen(ctx, r, config)
		if err != nil {
			return state, err
		}

		state.Machines = append(state.Machines, seen)
	}

	state.Seeds, err = p.seeds(ctx)

	return state, err
}

// seen is a machine as it is. How often it was started, the node's record of tasks says. What
// is in a TPM nobody can read, only whether there is one.
func (p *Part) seen(ctx context.Context, r row, config map[string]any) (conformance.Seen, error) {
	out := conformance.Seen{ID: r.VMID}
	out.TPM, _ = config["tpmstate0"].(string)

	if notes, ok := config["description"].(string); ok {
		// What has no record is somebody's all the same.
		record, _ := proxmox.ParseRecord(notes)
		out.ClaimUID, out.OperatorUID = record.MachineClaim.UID, record.OperatorUID
	}

	var err error
	if out.Running, err = p.running(ctx, r); err != nil {
		return out, err
	}

	var tasks []Task

	query := url.Values{
		"vmid": {strconv.Itoa(r.VMID)}, "typefilter": {"qmstart"}, "source": {"all"}, "since": {strconv.FormatInt(p.since.Unix(), 10)},
	}

	err = p.get(ctx, "/nodes/"+r.Node+"/tasks?"+query.Encode(), &tasks)
	for _, task := range tasks {
		if task.Status == "OK" || task.End == 0 {
			out.Starts++
		}
	}

	return out, err
}

func (p *Part) seeds(ctx context.Context) ([]string, error) {
	isos, err := p.isos(ctx)

	p.mu.Lock()
	defer p.mu.Unlock()

	var out []string

	for _, iso := range isos {
		if slices.ContainsFunc(p.marks, func(mark string) bool { return strings.Contains(iso.VolID, ":iso/"+mark) }) {
			out = append(out, iso.Node+"/"+iso.VolID)
		}
	}

	return out, err
}

func (p *Part) mine(id int) bool { return id >= p.First && id <= p.Last }

func (p *Part) isOccupied(id int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.occupied[id]
}

// find gives where a machine is; it has no node where it is nowhere.
func (p *Part) find(ctx context.Context, id int) (row, error) {
	rows, err := p.rows(ctx)
	for _, r := range rows {
		if r.VMID == id {
			return r, err
		}
	}

	return row{}, err
}

// Lock is what a machine is locked for; empty where it is not.
func (p *Part) Lock(id int) string {
	p.t.Helper()

	var config map[string]any

	r, err := p.find(context.Background(), id)
	if err == nil && r.Node != "" {
		config, err = p.config(context.Background(), r)
	}

	if err != nil {
		p.t.Error(err)
	}

	lock, _ := config["lock"].(string)

	return lock
}

// listed gives where a machine is that there must be. The listing may lack it for a moment.
func (p *Part) listed(ctx context.Context, id int) (row, error) {
	var r row

	err := waitFor(ctx, fmt.Sprintf("machine %d to be listed", id), func() (bool, error) {
		var err error
		r, err = p.find(ctx, id)

		return r.Node != "", err
	})

	return r, err
}

// PowerOff turns a machine off, as far as its operator can tell by itself.
func (p *Part) PowerOff(id int) {
	p.t.Helper()

	r, err := p.listed(context.Background(), id)
	if err == nil {
		err = p.post(context.Background(), r.path()+"/status/stop", nil)
	}

	if err != nil {
		p.t.Error(err)
	}
}

// Occupy puts a machine of nobody's on an id.
func (p *Part) Occupy(tb testing.TB, id int) {
	tb.Helper()

	at, err := p.find(tb.Context(), p.Template)
	if err == nil {
		err = p.post(tb.Context(), "/nodes/"+at.Node+"/qemu", map[string]any{"vmid": id, "name": "somebody-elses", "memory": 64})
	}

	if err != nil {
		tb.Fatal(err)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.occupied[id] = true
}

// Vanish removes a machine, as an administrator would; its ISO stays.
func (p *Part) Vanish(tb testing.TB, id int) {
	tb.Helper()

	r, err := p.listed(tb.Context(), id)
	if err == nil {
		err = p.destroy(tb.Context(), r)
	}

	if err != nil {
		tb.Fatal(err)
	}
}

// destroy removes a machine, once no task works on it.
func (s *Site) destroy(ctx context.Context, r row) error {
	return waitFor(ctx, fmt.Sprintf("machine %d to be removed", r.VMID), func() (bool, error) {
		running, err := s.running(ctx, r)
		if err == nil && running {
			err = s.post(ctx, r.path()+"/status/stop", nil)
		}

		if err == nil {
			err = s.delete(ctx, r.path()+"?purge=1")
		}

		return err == nil || gone(err), err
	})
}

// empty removes what is on this part.
func (p *Part) empty(ctx context.Context) error {
	rows, err := p.rows(ctx)

	for _, r := range rows {
		if p.mine(r.VMID) {
			err = errors.Join(err, p.destroy(ctx, r))
		}
	}

	p.mu.Lock()
	marks := slices.Clone(p.marks)
	p.mu.Unlock()

	isos, listed := p.isos(ctx)
	err = errors.Join(err, listed)

	for _, iso := range isos {
		if slices.ContainsFunc(marks, func(mark string) bool { return strings.Contains(iso.VolID, ":iso/"+mark) }) {
			err = errors.Join(err, waitFor(ctx, iso.VolID+" to be removed", func() (bool, error) {
				err := p.delete(ctx, "/nodes/"+iso.Node+"/storage/"+p.iso+"/content/"+url.PathEscape(iso.VolID))

				return err == nil || gone(err), err
			}))
		}
	}

	return err
}
