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

// startHypervisor starts pvesim with a machine template whose disk holds the runner and
// whose VMs run the real bootstrap service.
func (s *stack) startHypervisor(ctx context.Context) (string, error) {
	var image string

	if !s.options.real() { // which have it in their image
		var err error
		if image, err = s.layOutImage(ctx); err != nil {
			return "", err
		}
	}

	model, err := s.writeModel(image)
	if err != nil {
		return "", err
	}

	args := []string{"--model", model, "-E"}
	if faults, ok := s.faultsOf(ownerHypervisor); ok {
		args = append(args, "--faults", faults)
	}

	process, err := s.launch(ctx, "pvesim", s.programs.pvesim, args...)
	if err != nil {
		return "", err
	}

	exports, err := s.exports(ctx, process,
		"PVE_URL", "PVE_TOKEN_ID", "PVE_TOKEN_SECRET", "PVE_FINGERPRINT", "PVESIM_CONTROL")
	if err != nil {
		return "", err
	}

	s.setting.proxmoxURL, s.setting.proxmoxFingerprint = exports["PVE_URL"], exports["PVE_FINGERPRINT"]
	s.setting.proxmoxTokenID, s.setting.proxmoxTokenSecret = exports["PVE_TOKEN_ID"], exports["PVE_TOKEN_SECRET"]
	s.hypervisor = &hypervisorSim{control: control.Client{URL: exports["PVESIM_CONTROL"]}}

	return fmt.Sprintf("%d nodes at %s", s.options.Nodes, s.setting.proxmoxURL), nil
}

// model is the simulator's default cluster with as many nodes as are wanted: each has
// its own template and may be cloned on, and somebody else's VMs stand among them.
func (o *Options) model() pve.Model {
	m := pve.DefaultModel()
	first, template := m.Nodes[0], m.Templates[0].VMID
	m.Seed, m.Nodes = o.Seed, nil

	for i := range o.Nodes {
		node := first
		node.Name = "pve" + strconv.Itoa(i+1)
		m.Nodes = append(m.Nodes, node)

		for _, who := range []string{pve.DefaultUser, pve.DefaultTokenID} {
			m.ACL = append(m.ACL, pve.ACL{
				Path: "/vms/" + strconv.Itoa(template+i), Principal: who, Role: templateRole,
			})
		}
	}

	for i := range m.VMs {
		m.VMs[i].Node = m.Nodes[i%len(m.Nodes)].Name
	}

	if !o.real() {
		m.Delays.Clone, m.Delays.Boot = o.Clone, o.Boot
	}

	m.Limits.ClonesPerStorage = o.ParallelClones

	return m
}

// templateRole is the role of the simulator's default model that allows to clone.
const templateRole = "HyperFleetTemplate"

// writeModel writes the model, with everything that is on this machine.
func (s *stack) writeModel(image string) (string, error) {
	vms, path := filepath.Join(s.dir, "vms"), filepath.Join(s.dir, "pvesim.yaml")

	guests, err := s.guests(image, vms)
	if err != nil {
		return "", err
	}

	m := s.options.model()
	m.Guest = guests

	text, err := yaml.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("write the hypervisor's model: %w", err)
	}

	if err := os.MkdirAll(vms, ownerOnlyDir); err != nil {
		return "", fmt.Errorf("write the hypervisor's model: %w", err)
	}

	return path, writePrivate(path, text)
}

// hypervisorView is a hypervisor as the demo looks at it, past the operator.
type hypervisorView interface {
	// state takes a look at VMs and ISOs, withCalls also at the calls made so far.
	state(ctx context.Context) (hypervisorState, error)
	withCalls(ctx context.Context) (hypervisorState, error)
	// measure fills in the report's numbers.
	measure(ctx context.Context, s *stack, r *Report) error
	// consoles are what the guests of VMs have said.
	consoles(ctx context.Context) (map[int]string, error)
	// close ends what was started for it beside processes.
	close() error
}

// hypervisorSim is the simulated hypervisor.
type hypervisorSim struct{ control control.Client }

// hypervisorState is what a hypervisor holds: VMs by id, each with a fingerprint of
// everything that must not change about it, and ISOs. calls are those made so far.
type hypervisorState struct {
	vms   map[int]vmState
	isos  []string
	calls pve.CallCounts
}

type vmState struct{ label, fingerprint string }

// state takes a look at VMs and ISOs.
func (h *hypervisorSim) state(ctx context.Context) (hypervisorState, error) {
	now, err := h.control.State(ctx)
	if err != nil {
		return hypervisorState{}, fmt.Errorf("ask pvesim for its state: %w", err)
	}

	out := hypervisorState{vms: map[int]vmState{}}

	for i := range now.VMs {
		vm := &now.VMs[i]

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

	for _, iso := range now.ISOs() {
		out.isos = append(out.isos, strings.TrimSpace(iso.Node+" "+iso.VolID))
	}

	return out, nil
}

// withCalls is state with the calls made so far.
func (h *hypervisorSim) withCalls(ctx context.Context) (hypervisorState, error) {
	calls, err := h.control.Calls(ctx)
	if err != nil {
		return hypervisorState{}, fmt.Errorf("ask pvesim for its calls: %w", err)
	}

	out, err := h.state(ctx)
	out.calls = calls

	return out, err
}

// since names the VMs and ISOs that were not there before, and counts the VMs that were
// there and are not as they were.
func (h hypervisorState) since(before hypervisorState) (vms, isos []string, touched int) {
	for id, vm := range h.vms {
		if _, had := before.vms[id]; !had {
			vms = append(vms, vm.label)
		}
	}

	for id, was := range before.vms {
		if now, ok := h.vms[id]; !ok || now.fingerprint != was.fingerprint {
			touched++
		}
	}

	for _, iso := range h.isos {
		if !slices.Contains(before.isos, iso) {
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

	floor, err := h.control.Floor(ctx, s.options.allJobs(), s.options.Job)
	if err != nil {
		return fmt.Errorf("measure the hypervisor: %w", err)
	}

	broken, err := h.control.Violations(ctx)
	if err != nil {
		return fmt.Errorf("measure the hypervisor: %w", err)
	}

	for i := range broken {
		s.violations = append(s.violations,
			fmt.Sprintf("pvesim: %s %s: %s", broken[i].Call.Method, broken[i].Call.Path, broken[i].What))
	}

	r.Violations += len(broken)
	r.VMsCreated, r.VMCrashes = clonesMade(state.Tasks), state.Crashes

	if !s.options.real() { // whose boots take as long as they take
		r.FloorSeconds = seconds(s.options.floor(floor.Input))
	}

	r.countCalls(calls, s.baseline)

	if r.FloorSeconds > 0 {
		r.Ratio = round3(r.MakespanSeconds / r.FloorSeconds)
	}

	return nil
}

// floor is the best that the simulator's delays allow, with the pool's limit.
func (o *Options) floor(in pve.FloorInput) time.Duration {
	in.MaxVMs = o.Max

	return pve.Floor(in)
}

// clonesMade counts the clones that were done.
func clonesMade(tasks []pve.TaskState) int {
	n := 0

	for _, task := range tasks {
		if task.Type == "qmclone" && (task.Exit == "OK" || strings.HasPrefix(task.Exit, "WARNINGS")) {
			n++
		}
	}

	return n
}

// countCalls counts the calls since the first job. A clone's call speaks of its
// template's id and an upload's of its storage, so what counts for the VMs is every call
// of the classes vm and storage, whichever id is in it.
func (r *Report) countCalls(now pve.CallCounts, before hypervisorState) {
	for class, n := range now.ByClass {
		r.TotalCalls[string(class)] = n - before.calls.ByClass[class]
	}

	r.FailedCalls = now.Errors - before.calls.Errors

	for vmid, n := range now.ByVM {
		if _, foreign := before.vms[vmid]; !foreign {
			r.MaxCallsPerVM = max(r.MaxCallsPerVM, n)
		}
	}

	if r.VMsCreated > 0 {
		calls := r.TotalCalls[string(pve.ClassVM)] + r.TotalCalls[string(pve.ClassStorage)]
		r.CallsPerVM = round3(float64(calls) / float64(r.VMsCreated))
	}
}
