// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
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
)

func (h *handler) renderOverview(r *http.Request) (*page, error) {
	summary, err := h.View.Summary(r.Context(), h.Clock.Now())
	if err != nil {
		return nil, err
	}

	return &page{
		Title: "Overview", Area: "overview", Live: true, Data: summary,
		Missing: h.missingReasons(live.KindPool, live.KindJob, live.KindMachine, live.KindCluster),
	}, nil
}

func (h *handler) renderPools(r *http.Request) (*page, error) {
	summary, err := h.View.Summary(r.Context(), h.Clock.Now())
	if err != nil {
		return nil, err
	}

	return &page{Title: "Pools", Area: "pools", Live: true, Data: summary.Pools, Missing: h.missingReasons(live.KindPool)}, nil
}

// choice is a link that filters a list. Count is the number of rows in the filtered list.
type choice struct {
	Name, URL string
	Count     int
	Chosen    bool
}

// jobList is one page of the list of jobs.
type jobList struct {
	Jobs   []jobs.Job
	States []choice
	Pool   string
	Search string
	State  string
	Total  int
	// From and To are the positions of the first and the last row, starting at 1. PreviousURL is empty on the
	// first page, and NextURL is empty on the last page.
	From, To             int
	PreviousURL, NextURL string
}

func (h *handler) renderJobs(r *http.Request) (*page, error) {
	var all v1alpha1.RunnerJobList
	if err := h.View.List(r.Context(), &all); err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}

	query := r.URL.Query()
	out := &jobList{Pool: query.Get("pool"), Search: strings.TrimSpace(query.Get("q")), State: query.Get("state")}

	matching := slices.DeleteFunc(slices.Clone(all.Items), func(job v1alpha1.RunnerJob) bool {
		return out.Pool != "" && out.Pool != job.Namespace+"/"+job.Status.Pool || !matches(&job, out.Search)
	})

	count := map[string]int{"": len(matching)}
	for i := range matching {
		count[string(matching[i].Spec.State)]++
	}

	for _, state := range []string{
		"", string(v1alpha1.JobQueued), string(v1alpha1.JobWaiting), string(v1alpha1.JobRunning), string(v1alpha1.JobCompleted),
	} {
		out.States = append(out.States, choice{
			Name: cmp.Or(state, "All"), Count: count[state], Chosen: state == out.State,
			URL: "/jobs" + encodeQuery(query, "state", state, "page", ""),
		})
	}

	if out.State != "" {
		matching = slices.DeleteFunc(matching, func(job v1alpha1.RunnerJob) bool { return string(job.Spec.State) != out.State })
	}

	jobs.Sort(matching)
	h.paginate(out, matching, query)

	return &page{Title: "Jobs", Area: "jobs", Live: true, Data: out, Missing: h.missingReasons(live.KindJob)}, nil
}

// paginate sets the jobs and the links of the page that the query selects.
func (h *handler) paginate(out *jobList, matching []v1alpha1.RunnerJob, query url.Values) {
	last := max((len(matching)-1)/rowsPerPage, 0)
	index, _ := strconv.Atoi(query.Get("page"))
	index = min(max(index-1, 0), last)

	out.Total, out.From, out.To = len(matching), index*rowsPerPage+1, min((index+1)*rowsPerPage, len(matching))

	if index > 0 {
		out.PreviousURL = "/jobs" + encodeQuery(query, "page", strconv.Itoa(index))
	}

	if index < last {
		out.NextURL = "/jobs" + encodeQuery(query, "page", strconv.Itoa(index+2))
	}

	for i := index * rowsPerPage; i < out.To; i++ {
		out.Jobs = append(out.Jobs, jobs.NewJob(&matching[i], h.Clock.Now()))
	}
}

// matches reports whether the namespace, the names, the repository, the workflow, the runner or the pool of a
// job contain every word of the search. It ignores case.
func matches(job *v1alpha1.RunnerJob, words string) bool {
	text := strings.ToLower(strings.Join([]string{
		job.Namespace, job.Name, job.Spec.Name, job.Spec.Repository, job.Spec.Workflow, job.Spec.RunnerName, job.Status.Pool,
	}, " "))

	for word := range strings.FieldsSeq(strings.ToLower(words)) {
		if !strings.Contains(text, word) {
			return false
		}
	}

	return true
}

// encodeQuery returns "?" and the query of the job list with the given key-value pairs replaced. It leaves
// out keys with an empty value, and returns "" if the query has no keys.
func encodeQuery(query url.Values, pairs ...string) string {
	out := url.Values{}

	for _, key := range []string{"state", "pool", "q", "page"} {
		if value := query.Get(key); value != "" {
			out.Set(key, value)
		}
	}

	for pair := range slices.Chunk(pairs, 2) {
		out.Set(pair[0], pair[len(pair)-1])

		if pair[len(pair)-1] == "" {
			out.Del(pair[0])
		}
	}

	if len(out) == 0 {
		return ""
	}

	return "?" + out.Encode()
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
		Data: jobPage{details, newPhases(details.Timeline, h.Clock.Now())}, Missing: h.missingReasons(live.KindMachine),
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
		return claim.Namespace == pool.Namespace && poolName(claim) == pool.Name
	})
	if err != nil {
		return nil, err
	}

	var all v1alpha1.RunnerJobList
	if err := h.View.List(r.Context(), &all); err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}

	matching := slices.DeleteFunc(slices.Clone(all.Items), func(job v1alpha1.RunnerJob) bool {
		return job.Namespace != pool.Namespace || job.Status.Pool != pool.Name
	})
	jobs.Sort(matching)

	out := poolPage{Pool: live.NewPool(&pool), Machines: machines, MoreJobs: max(len(matching)-maxPoolJobs, 0)}
	for i := range matching[:min(len(matching), maxPoolJobs)] {
		out.Jobs = append(out.Jobs, jobs.NewJob(&matching[i], h.Clock.Now()))
	}

	return &page{
		Title: pool.Name, Area: "pool", Live: true, Data: out, Missing: h.missingReasons(live.KindMachine, live.KindJob),
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

func poolName(claim *v1alpha1.MachineClaim) string {
	if ref := claim.Spec.RunnerPoolRef; ref != nil {
		return ref.Name
	}

	return ""
}

func newMachine(claim *v1alpha1.MachineClaim) machine {
	out := machine{
		VM: jobs.NewVM(claim), MachineClaim: claim, Pool: poolName(claim), Ready: live.NewReady(claim.Status.Conditions),
	}
	if info := claim.Status.BootstrapInfo; info != nil {
		out.Job = cmp.Or(info.Job, info.BoundJob)
	}

	return out
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

func (h *handler) renderMachines(r *http.Request) (*page, error) {
	all, err := h.listMachines(r.Context(), func(*v1alpha1.MachineClaim) bool { return true })
	if err != nil {
		return nil, err
	}

	const maxRows = 500

	out := machineList{all[:min(len(all), maxRows)], max(len(all)-maxRows, 0)}

	return &page{Title: "Machines", Area: "machines", Live: true, Data: out, Missing: h.missingReasons(live.KindMachine)}, nil
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
		newMachine(&claim), timeline, newPhases(timeline, h.Clock.Now()),
	}}, nil
}

func (h *handler) renderClusters(r *http.Request) (*page, error) {
	summary, err := h.View.Summary(r.Context(), h.Clock.Now())
	if err != nil {
		return nil, err
	}

	return &page{
		Title:   "Hypervisors",
		Area:    "clusters",
		Live:    true,
		Data:    summary.Clusters,
		Missing: h.missingReasons(live.KindCluster),
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
		out.Nodes = append(out.Nodes, node{status, live.NewReady(status.Conditions), cpu, memory, count[status.Name]})
	}

	return &page{Title: cluster.Name, Area: "cluster", Live: true, Data: out, Missing: h.missingReasons(live.KindMachine)}, nil
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
		byFleet[fleetKey] = append(byFleet[fleetKey], host{meta, kind, fleet, address, status, live.NewReady(status.Conditions)})
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

	var out []hostFleet

	for i := range fleets.Items {
		fleet := &fleets.Items[i]
		hosts := byFleet[client.ObjectKeyFromObject(fleet)]
		slices.SortFunc(hosts, func(a, b host) int { return cmp.Compare(a.Name, b.Name) })
		out = append(out, hostFleet{fleet, live.NewReady(fleet.Status.Conditions), hosts})
	}

	slices.SortFunc(out, func(a, b hostFleet) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})

	return &page{
		Title: "Hosts", Area: "hosts", Live: true, Data: out, Missing: h.missingReasons(live.KindFleet, live.KindLinux, live.KindMac),
	}, nil
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
		out = append(out, bridge{&all.Items[i], live.NewReady(all.Items[i].Status.Conditions)})
	}

	slices.SortFunc(out, func(a, b bridge) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})

	return &page{Title: "Bridges", Area: "bridges", Live: true, Data: out, Missing: h.missingReasons(live.KindBridge)}, nil
}
