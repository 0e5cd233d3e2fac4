// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
)

const (
	// rowsPerPage is the maximum number of jobs on one page of the list.
	rowsPerPage = 100
	// maxPoolJobs is the maximum number of jobs on the page of a pool.
	maxPoolJobs = 20

	// Names of states of nodes and hosts.
	stateExcluded    = "Excluded"
	stateOffline     = "Offline"
	stateUnreachable = "Unreachable"
)

func (h *handler) renderOverview(r *http.Request) (*page, error) {
	summary, err := h.View.Summary(r.Context(), h.Clock.Now())
	if err != nil {
		return nil, err
	}

	return &page{
		Title: "Overview", Area: "overview", Live: true, Data: summary,
		Kinds: []string{live.KindPool, live.KindJob, live.KindMachine, live.KindCluster},
	}, nil
}

func (h *handler) renderPools(r *http.Request) (*page, error) {
	summary, err := h.View.Summary(r.Context(), h.Clock.Now())
	if err != nil {
		return nil, err
	}

	filter := newFilter(r)
	states := []string{live.StateReady, live.StateNotReady, live.StatePaused}
	pools := selectRows(filter, summary.Pools, states, func(pool live.Pool) filterFields {
		out := filterFields{
			states: readyStates(pool.Ready), pool: pool.Namespace + "/" + pool.Name,
			text: strings.Join([]string{pool.Namespace, pool.Name, pool.State(), pool.Ready.Message}, " "),
		}
		if pool.Spec.Paused {
			out.states = []string{live.StatePaused}
		}

		return out
	})

	return &page{
		Title: "Pools", Area: "pools", Live: true, Data: pools, Filter: filter, Kinds: []string{live.KindPool},
	}, nil
}

// jobList is one page of the list of jobs.
type jobList struct {
	Jobs  []jobs.Job
	Total int
	// From and To are the positions of the first and the last row, starting at 1. PreviousURL is empty on the
	// first page, and NextURL is empty on the last page.
	From, To             int
	PreviousURL, NextURL string
}

func (h *handler) renderJobs(r *http.Request) (*page, error) {
	var list v1alpha1.RunnerJobList
	if err := h.View.List(r.Context(), &list); err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}

	sorted := slices.Clone(list.Items)
	jobs.Sort(sorted)

	all := make([]jobs.Job, 0, len(sorted))
	for i := range sorted {
		all = append(all, jobs.NewJob(&sorted[i], h.Clock.Now()))
	}

	filter := newFilter(r)
	states := []string{
		string(v1alpha1.JobQueued), string(v1alpha1.JobWaiting), string(v1alpha1.JobRunning), string(v1alpha1.JobCompleted),
		live.StateFailed,
	}
	out := paginate(selectRows(filter, all, states, describeJob), filter, r.URL.Query().Get("page"))

	return &page{
		Title: "Jobs", Area: "jobs", Live: true, Data: out, Filter: filter, Kinds: []string{live.KindJob},
	}, nil
}

func describeJob(job jobs.Job) filterFields {
	out := filterFields{states: []string{string(job.State)}, pool: job.Namespace + "/" + job.Pool}

	if job.Conclusion != "" {
		out.states = append(out.states, job.Conclusion)
	}

	if live.IsFailure(job.Conclusion) {
		out.states = append(out.states, live.StateFailed)
	}

	if job.Cause != nil {
		out.states = append(out.states, job.Cause.Reason)
	}

	out.text = strings.Join(append(out.states,
		job.Namespace, job.Job, job.Name, job.Repository, job.Workflow, job.Runner, job.Pool, job.Machine), " ")

	return out
}

// paginate returns the page with the given number. If there is no such page, it returns the first or the last.
func paginate(matching []jobs.Job, filter *filter, number string) *jobList {
	last := max((len(matching)-1)/rowsPerPage, 0)
	index, _ := strconv.Atoi(number)
	index = min(max(index-1, 0), last)

	out := &jobList{Total: len(matching), From: index*rowsPerPage + 1, To: min((index+1)*rowsPerPage, len(matching))}
	out.Jobs = matching[index*rowsPerPage : out.To]

	if index > 0 {
		out.PreviousURL = filter.url("page", strconv.Itoa(index))
	}

	if index < last {
		out.NextURL = filter.url("page", strconv.Itoa(index+2))
	}

	return out
}

func objectKey(r *http.Request) client.ObjectKey {
	return client.ObjectKey{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
}

// jobPage is the data of the page of a job.
type jobPage struct {
	jobs.Details

	Phases []phase
}

func (h *handler) renderJob(r *http.Request) (*page, error) {
	details, err := jobs.LoadDetails(r.Context(), h.View, h.View.APIClient, objectKey(r), h.Clock.Now())
	if err != nil {
		return nil, err
	}

	return &page{
		Title: cmp.Or(details.Name, details.Job.Job), Area: "job", Live: true,
		Data:  jobPage{Details: details, Phases: newPhases(details.Timeline, h.Clock.Now())},
		Kinds: []string{live.KindJob, live.KindMachine},
	}, nil
}

// poolPage is the data of the page of a pool. MoreJobs is the number of jobs that are not shown.
type poolPage struct {
	live.Pool

	Machines []machine
	Jobs     []jobs.Job
	MoreJobs int
}

func (h *handler) renderPool(r *http.Request) (*page, error) {
	var pool v1alpha1.RunnerPool
	if err := h.View.Get(r.Context(), objectKey(r), &pool); err != nil {
		return nil, fmt.Errorf("get RunnerPool: %w", err)
	}

	machines, err := h.listMachines(r.Context(), func(claim *v1alpha1.MachineClaim) bool {
		return claim.Namespace == pool.Namespace && claim.PoolName() == pool.Name
	})
	if err != nil {
		return nil, err
	}

	var all v1alpha1.RunnerJobList
	if err := h.View.List(r.Context(), &all); err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}

	matching := slices.DeleteFunc(slices.Clone(all.Items), func(job v1alpha1.RunnerJob) bool {
		return job.Namespace != pool.Namespace || job.PoolName() != pool.Name
	})
	jobs.Sort(matching)

	out := poolPage{Pool: live.NewPool(&pool), Machines: machines, MoreJobs: max(len(matching)-maxPoolJobs, 0)}
	for i := range matching[:min(len(matching), maxPoolJobs)] {
		out.Jobs = append(out.Jobs, jobs.NewJob(&matching[i], h.Clock.Now()))
	}

	return &page{
		Title: pool.Name, Area: "pool", Live: true, Data: out, Kinds: []string{live.KindPool, live.KindMachine, live.KindJob},
	}, nil
}

// machine is one row of a list of machines.
type machine struct {
	jobs.VM

	*v1alpha1.MachineClaim

	Pool string
	// Job is the name of the RunnerJob that the machine runs or is reserved for.
	Job   string
	Ready live.Ready
}

func newMachine(claim *v1alpha1.MachineClaim) machine {
	return machine{
		VM: jobs.NewVM(claim), MachineClaim: claim, Pool: claim.PoolName(), Job: live.MachineJob(claim),
		Ready: live.NewReady(claim.Status.Conditions),
	}
}

// listMachines returns the machines of the claims for which include returns true, the newest first.
func (h *handler) listMachines(ctx context.Context, include func(*v1alpha1.MachineClaim) bool) ([]machine, error) {
	var claims v1alpha1.MachineClaimList
	if err := h.View.List(ctx, &claims); err != nil {
		return nil, fmt.Errorf("list MachineClaims: %w", err)
	}

	var out []machine

	for i := range claims.Items {
		if include(&claims.Items[i]) {
			out = append(out, newMachine(&claims.Items[i]))
		}
	}

	slices.SortFunc(out, func(a, b machine) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})

	return out, nil
}

// machineList is the data of the page of all machines. More is the number of machines that are not shown.
type machineList struct {
	Machines []machine
	More     int
}

// renderMachines renders the page of all machines. It shows at most maxRows of the machines that the filter selects.
func (h *handler) renderMachines(r *http.Request) (*page, error) {
	all, err := h.listMachines(r.Context(), func(*v1alpha1.MachineClaim) bool { return true })
	if err != nil {
		return nil, err
	}

	const maxRows = 500

	filter := newFilter(r)
	states := []string{
		live.StateStarting, live.StateIdle, live.StateBusy, live.StateStandby, live.StateEnding, live.StateFailed,
	}
	matching := selectRows(filter, all, states, func(m machine) filterFields {
		rowStates := []string{cmp.Or(m.Phase, string(v1alpha1.MachineClaimPending)), live.MachineState(m.MachineClaim)}

		return filterFields{
			states: rowStates, pool: m.Namespace + "/" + m.Pool,
			text: strings.Join(append(rowStates, m.Namespace, m.Name, m.Pool, m.Node, m.ID, m.IP, m.Job, m.Ready.Reason), " "),
		}
	})
	out := machineList{Machines: matching[:min(len(matching), maxRows)], More: max(len(matching)-maxRows, 0)}

	return &page{
		Title: "Machines", Area: "machines", Live: true, Data: out, Filter: filter, Kinds: []string{live.KindMachine},
	}, nil
}

// machinePage is the data of the page of a machine.
type machinePage struct {
	machine

	Timeline []jobs.TimelineEntry
	Phases   []phase
}

func (h *handler) renderMachine(r *http.Request) (*page, error) {
	var claim v1alpha1.MachineClaim
	if err := h.View.Get(r.Context(), objectKey(r), &claim); err != nil {
		return nil, fmt.Errorf("get MachineClaim: %w", err)
	}

	timeline := newTimeline(&claim)

	return &page{Title: claim.Name, Area: "machine", Live: true, Data: machinePage{
		machine: newMachine(&claim), Timeline: timeline, Phases: newPhases(timeline, h.Clock.Now()),
	}}, nil
}

func (h *handler) renderClusters(r *http.Request) (*page, error) {
	summary, err := h.View.Summary(r.Context(), h.Clock.Now())
	if err != nil {
		return nil, err
	}

	filter := newFilter(r)
	states := []string{live.StateReady, live.StateNotReady}
	clusters := selectRows(filter, summary.Clusters, states, func(c live.Cluster) filterFields {
		return filterFields{
			states: readyStates(c.Ready),
			text:   strings.Join([]string{c.Name, c.Spec.Provider, c.Status.Version, c.Ready.State(), c.Ready.Message}, " "),
		}
	})

	return &page{
		Title: "Hypervisors", Area: "clusters", Live: true, Data: clusters, Filter: filter,
		Kinds: []string{live.KindCluster},
	}, nil
}

// node is one row of the list of a cluster's nodes.
type node struct {
	v1alpha1.HypervisorNodeStatus

	Ready       live.Ready
	CPU, Memory live.Usage
	Machines    int
}

// clusterPage is the data of the page of a hypervisor cluster.
type clusterPage struct {
	live.Cluster

	Nodes []node
}

func (h *handler) renderCluster(r *http.Request) (*page, error) {
	var cluster v1alpha1.HypervisorCluster
	if err := h.View.Get(r.Context(), client.ObjectKey{Name: r.PathValue("name")}, &cluster); err != nil {
		return nil, fmt.Errorf("get HypervisorCluster: %w", err)
	}

	machines, err := h.listMachines(r.Context(), func(claim *v1alpha1.MachineClaim) bool {
		return claim.Status.VMRef != nil && claim.Status.VMRef.HypervisorCluster == cluster.Name
	})
	if err != nil {
		return nil, err
	}

	count := map[string]int{}
	for _, machine := range machines {
		count[machine.Node]++
	}

	out := clusterPage{Cluster: live.NewCluster(&cluster)}

	for _, status := range cluster.Status.Nodes {
		cpu, memory := live.NodeUsage(&status)
		out.Nodes = append(out.Nodes, node{
			HypervisorNodeStatus: status, Ready: live.NewReady(status.Conditions), CPU: cpu, Memory: memory,
			Machines: count[status.Name],
		})
	}

	filter := newFilter(r)
	states := []string{live.StateReady, live.StateNotReady, stateExcluded, stateOffline}
	out.Nodes = selectRows(filter, out.Nodes, states, func(n node) filterFields {
		rowStates := readyStates(n.Ready)

		switch {
		case !n.Online:
			rowStates = append(rowStates, stateOffline)
		case n.Ready.Status == metav1.ConditionFalse:
			rowStates = append(rowStates, stateExcluded)
		}

		return filterFields{states: rowStates, text: strings.Join(append(rowStates, n.Name, n.Ready.Message), " ")}
	})

	return &page{
		Title: cluster.Name, Area: "cluster", Live: true, Data: out, Filter: filter,
		Kinds: []string{live.KindCluster, live.KindMachine},
	}, nil
}

// host is one row of a list of hosts, which can be of any kind.
type host struct {
	metav1.ObjectMeta

	Kind, Fleet, Address string
	Status               *infrav1.HostStatus
	Ready                live.Ready
}

// hostFleet is a fleet with its hosts.
type hostFleet struct {
	*infrav1.HostFleet

	Ready live.Ready
	Hosts []host
}

func (h *handler) renderHosts(r *http.Request) (*page, error) {
	var (
		fleets infrav1.HostFleetList
		linux  infrav1.LinuxMachineList
		macs   infrav1.ScalewayAppleSiliconMachineList
	)

	for _, list := range []client.ObjectList{&fleets, &linux, &macs} {
		if err := h.View.List(r.Context(), list); err != nil {
			return nil, fmt.Errorf("list hosts: %w", err)
		}
	}

	byFleet := map[client.ObjectKey][]host{}
	add := func(kind, fleet, address string, meta metav1.ObjectMeta, status *infrav1.HostStatus) {
		fleetKey := client.ObjectKey{Namespace: meta.Namespace, Name: fleet}
		byFleet[fleetKey] = append(byFleet[fleetKey], host{
			ObjectMeta: meta, Kind: kind, Fleet: fleet, Address: address,
			Status: status, Ready: live.NewReady(status.Conditions),
		})
	}

	for i := range linux.Items {
		m := &linux.Items[i]
		add(live.KindLinux, m.Spec.FleetName, m.Spec.Address, m.ObjectMeta, &m.Status.HostStatus)
	}

	for i := range macs.Items {
		m := &macs.Items[i]

		address := ""
		if len(m.Status.Addresses) > 0 {
			address = m.Status.Addresses[0].Address
		}

		add(live.KindMac, m.Spec.FleetName, address, m.ObjectMeta, &m.Status.HostStatus)
	}

	var all []hostFleet

	for i := range fleets.Items {
		fleet := &fleets.Items[i]
		hosts := byFleet[client.ObjectKeyFromObject(fleet)]
		slices.SortFunc(hosts, func(a, b host) int { return cmp.Compare(a.Name, b.Name) })
		all = append(all, hostFleet{HostFleet: fleet, Ready: live.NewReady(fleet.Status.Conditions), Hosts: hosts})
	}

	slices.SortFunc(all, func(a, b hostFleet) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})

	filter := newFilter(r)

	return &page{
		Title: "Hosts", Area: "hosts", Live: true, Data: selectHosts(filter, all), Filter: filter,
		Kinds: []string{live.KindFleet, live.KindLinux, live.KindMac},
	}, nil
}

// selectHosts returns the fleets that a filter selects with all their hosts, and the other fleets with the hosts
// that the filter selects.
func selectHosts(filter *filter, all []hostFleet) []hostFleet {
	fleets := selectRows(filter, all, nil, func(f hostFleet) filterFields {
		return filterFields{states: slices.DeleteFunc(readyStates(f.Ready), selectsOnlyHosts), text: f.Namespace + " " + f.Name}
	})

	var hosts []host
	for i := range all {
		hosts = append(hosts, all[i].Hosts...)
	}

	filter.States = nil
	hosts = selectRows(filter, hosts, []string{live.StateReady, live.StateNotReady, stateUnreachable}, func(m host) filterFields {
		rowStates := phaseStates(m.Ready, string(m.Status.Phase))
		if m.Status.UnreachableSince != nil {
			rowStates = append(rowStates, stateUnreachable)
		}

		return filterFields{states: rowStates, text: strings.Join(append(rowStates, m.Namespace, m.Fleet, m.Name, m.Address), " ")}
	})

	var out []hostFleet

	for _, fleet := range all {
		if !slices.ContainsFunc(fleets, func(f hostFleet) bool { return f.HostFleet == fleet.HostFleet }) {
			fleet.Hosts = slices.DeleteFunc(slices.Clone(hosts), func(m host) bool {
				return m.Namespace != fleet.Namespace || m.Fleet != fleet.Name
			})
		}

		if len(fleet.Hosts) > 0 || !filter.Active {
			out = append(out, fleet)
		}
	}

	return out
}

// selectsOnlyHosts reports whether a state selects hosts, but not their fleet.
func selectsOnlyHosts(state string) bool {
	return state == live.StateReady || state == live.StateNotReady
}

// bridge is one row of the list of bridges.
type bridge struct {
	*bridgev1.DPFHCPBridge

	Ready live.Ready
}

func (h *handler) renderBridges(r *http.Request) (*page, error) {
	var all bridgev1.DPFHCPBridgeList
	if err := h.View.List(r.Context(), &all); err != nil {
		return nil, fmt.Errorf("list bridges: %w", err)
	}

	var out []bridge
	for i := range all.Items {
		out = append(out, bridge{DPFHCPBridge: &all.Items[i], Ready: live.NewReady(all.Items[i].Status.Conditions)})
	}

	slices.SortFunc(out, func(a, b bridge) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})

	filter := newFilter(r)
	out = selectRows(filter, out, []string{live.StateReady, live.StateNotReady}, func(b bridge) filterFields {
		rowStates := phaseStates(b.Ready, string(b.Status.Phase))

		return filterFields{
			states: rowStates, text: strings.Join(append(rowStates, b.Namespace, b.Name, b.Spec.DPUClusterRef.Name), " "),
		}
	})

	return &page{
		Title: "Bridges", Area: "bridges", Live: true, Data: out, Filter: filter, Kinds: []string{live.KindBridge},
	}, nil
}
