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

// Cluster is the prefix of the cluster names of the tests' operators. The ownership records of their
// machines contain the cluster name.
const Cluster = "realpve-"

// Part is a part of a site that only one test uses. It has its own VMIDs, and its own cluster name, so that
// its operators do not own machines of other parts.
type Part struct {
	*Site

	// First and Last are the first and the last VMID.
	First, Last int

	clusterName string
	startTime   time.Time
	t           testing.TB

	mu       sync.Mutex
	occupied map[int]bool
	// isoPrefixes are the prefixes of the names of its operators' ISOs.
	isoPrefixes []string
}

// NewPart returns a part for a test. When the test ends, it deletes all machines and ISOs of the part.
func (s *Site) NewPart(t testing.TB) *Part {
	t.Helper()

	n := int(s.parts.Add(1))
	p := &Part{
		Site: s, First: s.firstVMID + n*vmidsPerPart, Last: s.firstVMID + (n+1)*vmidsPerPart - 1,
		clusterName: fmt.Sprintf("%s%d", Cluster, n), startTime: time.Now(), t: t, occupied: map[int]bool{},
	}

	t.Cleanup(func() {
		if err := p.cleanUp(context.Background()); err != nil {
			t.Error(err)
		}
	})

	return p
}

// Config returns the configuration with which the part's operators connect to the site.
func (p *Part) Config() hypervisor.Config {
	config := p.BaseConfig()
	config.Name, config.IDMin, config.IDMax = p.clusterName, p.First, p.Last

	return config
}

// Connect returns a new provider, as a new process of the operator would create it.
func (p *Part) Connect(tb conformance.TB, options hypervisor.Options) hypervisor.Connection {
	tb.Helper()

	prefix := "hf-" + hypervisor.Identity{OperatorUID: options.OperatorUID, Cluster: p.clusterName}.Hash() + "-"

	p.mu.Lock()
	if !slices.Contains(p.isoPrefixes, prefix) {
		p.isoPrefixes = append(p.isoPrefixes, prefix)
	}
	p.mu.Unlock()
	p.allISOPrefixes.Store(prefix, true)

	connection, err := proxmox.New(p.Config(), options)
	if err != nil {
		tb.Fatal(err)
	}

	return connection
}

// Inspect returns the state of this part that the administrator reads.
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

	rows, err := p.listVMs(ctx)
	if err != nil {
		return state, err
	}

	slices.SortFunc(rows, func(a, b vmRow) int { return a.VMID - b.VMID })

	for _, r := range rows {
		if !p.isTemplate(r.VMID) && !p.ownsID(r.VMID) {
			continue
		}

		config, err := p.readConfig(ctx, r)
		if err != nil || config == nil {
			return state, err
		}

		if p.isTemplate(r.VMID) || p.isOccupied(r.VMID) {
			state.Foreign += fmt.Sprintf("%d %s\n", r.VMID, formatConfig(config))

			continue
		}

		machine, err := p.inspectMachine(ctx, r, config)
		if err != nil {
			return state, err
		}

		state.Machines = append(state.Machines, machine)
	}

	state.Seeds, err = p.listSeeds(ctx)

	return state, err
}

// inspectMachine returns the state of a machine. It counts the starts in the node's list of tasks. The
// content of a TPM cannot be read, so TPM only shows whether the machine has one.
func (p *Part) inspectMachine(ctx context.Context, r vmRow, config map[string]any) (conformance.ObservedMachine, error) {
	out := conformance.ObservedMachine{ID: r.VMID}
	out.TPM, _ = config["tpmstate0"].(string)

	if notes, ok := config["description"].(string); ok {
		// Also return machines without an ownership record.
		record, _ := proxmox.ParseRecord(notes)
		out.ClaimUID, out.OperatorUID = record.MachineClaim.UID, record.OperatorUID
	}

	var err error
	if out.Running, err = p.isRunning(ctx, r); err != nil {
		return out, err
	}

	var tasks []Task

	query := url.Values{
		"vmid": {strconv.Itoa(r.VMID)}, "typefilter": {"qmstart"}, "source": {"all"},
		"since": {strconv.FormatInt(p.startTime.Unix(), 10)},
	}

	err = p.get(ctx, "/nodes/"+r.Node+"/tasks?"+query.Encode(), &tasks)
	for _, task := range tasks {
		if task.Status == "OK" || task.End == 0 {
			out.Starts++
		}
	}

	return out, err
}

func (p *Part) listSeeds(ctx context.Context) ([]string, error) {
	isos, err := p.listISOs(ctx)

	p.mu.Lock()
	defer p.mu.Unlock()

	var out []string

	for _, iso := range isos {
		if slices.ContainsFunc(p.isoPrefixes, func(prefix string) bool { return strings.Contains(iso.VolID, ":iso/"+prefix) }) {
			out = append(out, iso.Node+"/"+iso.VolID)
		}
	}

	return out, err
}

func (p *Part) ownsID(id int) bool { return id >= p.First && id <= p.Last }

func (p *Part) isOccupied(id int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.occupied[id]
}

// findVM returns the row of a machine. The node is empty if the machine does not exist.
func (p *Part) findVM(ctx context.Context, id int) (vmRow, error) {
	rows, err := p.listVMs(ctx)
	for _, r := range rows {
		if r.VMID == id {
			return r, err
		}
	}

	return vmRow{}, err
}

// Lock returns the lock of a machine, "" if it is not locked.
func (p *Part) Lock(id int) string {
	p.t.Helper()

	var config map[string]any

	r, err := p.findVM(context.Background(), id)
	if err == nil && r.Node != "" {
		config, err = p.readConfig(context.Background(), r)
	}

	if err != nil {
		p.t.Error(err)
	}

	lock, _ := config["lock"].(string)

	return lock
}

// waitForVM returns the row of a machine that must exist. It waits, because a new machine may be missing in
// the list for a short time.
func (p *Part) waitForVM(ctx context.Context, id int) (vmRow, error) {
	var r vmRow

	err := waitFor(ctx, fmt.Sprintf("machine %d in the list", id), func() (bool, error) {
		var err error
		r, err = p.findVM(ctx, id)

		return r.Node != "", err
	})

	return r, err
}

// PowerOff stops a machine as the administrator. To the operator, this looks as if the guest had powered off.
func (p *Part) PowerOff(id int) {
	p.t.Helper()

	r, err := p.waitForVM(context.Background(), id)
	if err == nil {
		err = p.post(context.Background(), r.path()+"/status/stop", nil)
	}

	if err != nil {
		p.t.Error(err)
	}
}

// OccupyID creates a machine without an owner that has the id.
func (p *Part) OccupyID(tb conformance.TB, id int) {
	tb.Helper()

	template, err := p.findVM(tb.Context(), p.Template)
	if err == nil {
		err = p.post(tb.Context(), "/nodes/"+template.Node+"/qemu", map[string]any{"vmid": id, "name": "somebody-elses", "memory": 64})
	}

	if err != nil {
		tb.Fatal(err)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.occupied[id] = true
}

// DeleteExternally deletes a machine as the administrator. Its ISO stays.
func (p *Part) DeleteExternally(tb conformance.TB, id int) {
	tb.Helper()

	r, err := p.waitForVM(tb.Context(), id)
	if err == nil {
		err = p.destroyVM(tb.Context(), r)
	}

	if err != nil {
		tb.Fatal(err)
	}
}

// destroyVM deletes a machine. It retries until no task is running on the machine.
func (s *Site) destroyVM(ctx context.Context, r vmRow) error {
	return waitFor(ctx, fmt.Sprintf("the deletion of machine %d", r.VMID), func() (bool, error) {
		running, err := s.isRunning(ctx, r)
		if err == nil && running {
			err = s.post(ctx, r.path()+"/status/stop", nil)
		}

		if err == nil {
			err = s.delete(ctx, r.path()+"?purge=1")
		}

		return err == nil || isNotFound(err), err
	})
}

// cleanUp deletes all machines and ISOs of this part.
func (p *Part) cleanUp(ctx context.Context) error {
	rows, err := p.listVMs(ctx)

	for _, r := range rows {
		if p.ownsID(r.VMID) {
			err = errors.Join(err, p.destroyVM(ctx, r))
		}
	}

	p.mu.Lock()
	prefixes := slices.Clone(p.isoPrefixes)
	p.mu.Unlock()

	isos, listErr := p.listISOs(ctx)
	err = errors.Join(err, listErr)

	for _, iso := range isos {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.Contains(iso.VolID, ":iso/"+prefix) }) {
			err = errors.Join(err, waitFor(ctx, "the deletion of "+iso.VolID, func() (bool, error) {
				err := p.delete(ctx, "/nodes/"+iso.Node+"/storage/"+p.iso+"/content/"+url.PathEscape(iso.VolID))

				return err == nil || isNotFound(err), err
			}))
		}
	}

	return err
}
