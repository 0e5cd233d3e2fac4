// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/control"
)

// startHypervisor starts pvesim. Its machine template has a runner installation on its disk, and its VMs
// run the real bootstrap service.
func (s *stack) startHypervisor(ctx context.Context) (string, error) {
	var image string

	if !s.options.hasRealMachines() { // the image of real machines already has a runner
		var err error
		if image, err = s.createImage(ctx); err != nil {
			return "", err
		}
	}

	modelFile, err := s.writeModel(image)
	if err != nil {
		return "", err
	}

	args := []string{"--model", modelFile, "-E"}
	if faults, ok := s.faultsFlag(injectorHypervisor); ok {
		args = append(args, "--faults", faults)
	}

	process, err := s.launch(ctx, "pvesim", s.programs.pvesim, args...)
	if err != nil {
		return "", err
	}

	exports, err := s.waitForExports(ctx, process,
		"PVE_URL", "PVE_TOKEN_ID", "PVE_TOKEN_SECRET", "PVE_FINGERPRINT", "PVESIM_CONTROL")
	if err != nil {
		return "", err
	}

	s.settings.proxmoxURL, s.settings.proxmoxFingerprint = exports["PVE_URL"], exports["PVE_FINGERPRINT"]
	s.settings.proxmoxTokenID, s.settings.proxmoxTokenSecret = exports["PVE_TOKEN_ID"], exports["PVE_TOKEN_SECRET"]
	s.hypervisor = &hypervisorSim{control: control.Client{URL: exports["PVESIM_CONTROL"]}}

	return fmt.Sprintf("%d nodes at %s", s.options.Nodes, s.settings.proxmoxURL), nil
}

// hypervisorModel returns the default cluster of pvesim with the given number of nodes. Each node has a
// template that the operator may clone, and some nodes have VMs of other owners.
func (o *Options) hypervisorModel() pve.Model {
	m := pve.DefaultModel()
	first, template := m.Nodes[0], m.Templates[0].VMID
	m.Seed, m.Nodes = o.Seed, nil

	for i := range o.Nodes {
		node := first
		node.Name = "pve" + strconv.Itoa(i+1)
		m.Nodes = append(m.Nodes, node)

		for _, principal := range []string{pve.DefaultUser, pve.DefaultTokenID} {
			m.ACL = append(m.ACL, pve.ACL{
				Path: "/vms/" + strconv.Itoa(template+i), Principal: principal, Role: templateRole,
			})
		}
	}

	for i := range m.VMs {
		m.VMs[i].Node = m.Nodes[i%len(m.Nodes)].Name
	}

	if !o.hasRealMachines() {
		m.Delays.Clone, m.Delays.Boot = o.Clone, o.Boot
	}

	m.Limits.ClonesPerStorage = o.ParallelClones

	return m
}

// templateRole is the role in the simulator's default model that allows cloning a template.
const templateRole = "HyperFleetTemplate"

// writeModel writes the configuration file of pvesim, its model, and returns the path of the file. The model
// names the files from which pvesim boots guests.
func (s *stack) writeModel(image string) (string, error) {
	vms, path := filepath.Join(s.dir, "vms"), filepath.Join(s.dir, "pvesim.yaml")

	guest, err := s.newGuest(image, vms)
	if err != nil {
		return "", err
	}

	m := s.options.hypervisorModel()
	m.Guest = guest

	text, err := yaml.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("write the hypervisor's model: %w", err)
	}

	if err := os.MkdirAll(vms, ownerOnlyDir); err != nil {
		return "", fmt.Errorf("write the hypervisor's model: %w", err)
	}

	return path, writePrivateFile(path, text)
}

// hypervisorObserver reads the state of a hypervisor independently of the operator.
type hypervisorObserver interface {
	// state reads VMs and ISOs.
	state(ctx context.Context) (hypervisorState, error)
	// stateWithCalls reads VMs, ISOs and the number of calls so far.
	stateWithCalls(ctx context.Context) (hypervisorState, error)
	// measure sets the hypervisor's numbers in the report.
	measure(ctx context.Context, s *stack, r *Report) error
	// consoles returns the console output of VMs by ID.
	consoles(ctx context.Context) (map[int]string, error)
	// close stops what was started for the hypervisor, except for processes.
	close() error
}

// hypervisorSim is the simulated hypervisor.
type hypervisorSim struct{ control control.Client }

// hypervisorState has the VMs of a hypervisor by ID, its ISOs, and the number of calls so far. The
// fingerprint of a VM covers everything that must not change if the VM has another owner.
type hypervisorState struct {
	vms   map[int]vmState
	isos  []string
	calls pve.CallCounts
}

type vmState struct{ label, fingerprint string }

// state reads VMs and ISOs.
func (h *hypervisorSim) state(ctx context.Context) (hypervisorState, error) {
	sim, err := h.control.State(ctx)
	if err != nil {
		return hypervisorState{}, fmt.Errorf("get the state of pvesim: %w", err)
	}

	out := hypervisorState{vms: map[int]vmState{}}

	for i := range sim.VMs {
		vm := &sim.VMs[i]

		text, err := json.Marshal(vm)
		if err != nil {
			return hypervisorState{}, fmt.Errorf("fingerprint VM %d: %w", vm.VMID, err)
		}

		label := fmt.Sprintf("%d %s on %s, %s", vm.VMID, vm.Name, vm.Node, vm.Status)
		if vm.Lock != "" {
			label += ", locked: " + vm.Lock
		}

		out.vms[vm.VMID] = vmState{label: label, fingerprint: string(text)}
	}

	for _, iso := range sim.ISOs() {
		out.isos = append(out.isos, strings.TrimSpace(iso.Node+" "+iso.VolID))
	}

	return out, nil
}

// stateWithCalls reads VMs, ISOs and the number of calls so far.
func (h *hypervisorSim) stateWithCalls(ctx context.Context) (hypervisorState, error) {
	calls, err := h.control.Calls(ctx)
	if err != nil {
		return hypervisorState{}, fmt.Errorf("get the number of calls from pvesim: %w", err)
	}

	out, err := h.state(ctx)
	out.calls = calls

	return out, err
}

// diff returns the VMs and ISOs that did not exist before, and the number of earlier VMs that were
// changed or deleted.
func (h hypervisorState) diff(baseline hypervisorState) (vms, isos []string, touched int) {
	for id, vm := range h.vms {
		if _, existedBefore := baseline.vms[id]; !existedBefore {
			vms = append(vms, vm.label)
		}
	}

	for id, previous := range baseline.vms {
		if current, ok := h.vms[id]; !ok || current.fingerprint != previous.fingerprint {
			touched++
		}
	}

	for _, iso := range h.isos {
		if !slices.Contains(baseline.isos, iso) {
			isos = append(isos, iso)
		}
	}

	slices.Sort(vms)

	return vms, isos, touched
}

func (h *hypervisorSim) close() error { return nil }

func (h *hypervisorSim) consoles(ctx context.Context) (map[int]string, error) {
	calls, err := h.control.Calls(ctx)
	if err != nil {
		return nil, fmt.Errorf("read consoles: %w", err)
	}

	var (
		out  = map[int]string{}
		errs []error
	)

	ids := slices.Sorted(maps.Keys(calls.ByVM))
	for _, id := range ids[max(len(ids)-maxConsoles, 0):] {
		text, err := h.control.Log(ctx, id)
		out[id] = text

		errs = append(errs, err)
	}

	return out, errors.Join(errs...)
}

func (h *hypervisorSim) measure(ctx context.Context, s *stack, r *Report) error {
	state, err := h.control.State(ctx)
	if err != nil {
		return fmt.Errorf("measure the hypervisor: %w", err)
	}

	calls, err := h.control.Calls(ctx)
	if err != nil {
		return fmt.Errorf("measure the hypervisor: %w", err)
	}

	floor, err := h.control.Floor(ctx, s.options.totalJobs(), s.options.Job)
	if err != nil {
		return fmt.Errorf("measure the hypervisor: %w", err)
	}

	broken, err := h.control.Violations(ctx)
	if err != nil {
		return fmt.Errorf("measure the hypervisor: %w", err)
	}

	for i := range broken {
		s.violations = append(s.violations,
			fmt.Sprintf("pvesim: %s %s: %s", broken[i].Call.Method, broken[i].Call.Path, broken[i].Message))
	}

	r.Violations += len(broken)
	r.VMsCreated, r.VMCrashes = countClones(state.Tasks), state.Crashes

	if !s.options.hasRealMachines() { // the boot time of real machines is unknown
		r.FloorSeconds = seconds(s.options.floor(floor.Input))
	}

	r.countCalls(calls, s.baseline)

	if r.FloorSeconds > 0 {
		r.Ratio = round3(r.MakespanSeconds / r.FloorSeconds)
	}

	return nil
}

// floor returns the shortest run time that the simulator's delays and the pool's limit allow.
func (o *Options) floor(in pve.FloorInput) time.Duration {
	in.MaxVMs = o.Max

	return pve.Floor(in)
}

// countClones returns the number of clone tasks that succeeded, with or without warnings.
func countClones(tasks []pve.TaskState) int {
	n := 0

	for _, task := range tasks {
		if task.Type == "qmclone" && (task.Exit == "OK" || strings.HasPrefix(task.Exit, "WARNINGS")) {
			n++
		}
	}

	return n
}

// countCalls sets the numbers of calls since the first job. A clone call has the ID of the template in its
// path, and an upload has the storage. CallsPerVM therefore includes all calls of the classes vm and
// storage, regardless of the ID in their path.
func (r *Report) countCalls(current pve.CallCounts, baseline hypervisorState) {
	for class, n := range current.ByClass {
		r.TotalCalls[string(class)] = n - baseline.calls.ByClass[class]
	}

	r.FailedCalls = current.Errors - baseline.calls.Errors

	for vmid, n := range current.ByVM {
		if _, isForeign := baseline.vms[vmid]; !isForeign {
			r.MaxCallsPerVM = max(r.MaxCallsPerVM, n)
		}
	}

	if r.VMsCreated > 0 {
		calls := r.TotalCalls[string(pve.ClassVM)] + r.TotalCalls[string(pve.ClassStorage)]
		r.CallsPerVM = round3(float64(calls) / float64(r.VMsCreated))
	}
}
