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
	// perPage bounds the rows of one page.
	perPage = 100
	// fewJobs are shown on the page of a pool.
	fewJobs = 20
)

func (h *handler) overview(r *http.Request) (*page, error) {
	summary, err := h.View.Summary(r.Context(), h.Clock.Now())
	if err != nil {
		return nil, err
	}

	return &page{
		Title: "Overview", Area: "overview", Live: true, Data: summary,
		Missing: h.missing(live.KindPool, live.KindJob, live.KindMachine, live.KindCluster),
	}, nil
}

func (h *handler) pools(r *http.Request) (*page, error) {
	summary, err := h.View.Summary(r.Context(), h.Clock.Now())
	if err != nil {
		return nil, err
	}

	return &page{Title: "Pools", Area: "pools", Live: true, Data: summary.Pools, Missing: h.missing(live.KindPool)}, nil
}

// choice is a link that narrows a list down, with how many rows it leads to.
type choice struct {
	Name, URL string
	Count     int
	Chosen    bool
}

// jobList is a page of the list of jobs.
type jobList struct {
	Jobs   []jobs.Job
	States []choice
	Pool   string
	Search string
	State  string
	Total  int
	// From and To are the places of the first and the last row; the links are empty at the ends.
	From, To             int
	PreviousURL, NextURL string
}

func (h *handler) jobs(r *http.Request) (*page, error) {
	var all v1alpha1.RunnerJobList
	if err := h.View.List(r.Context(), &all); err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}

	query := r.URL.Query()
	out := &jobList{Pool: query.Get("pool"), Search: strings.TrimSpace(query.Get("q")), State: query.Get("state")}

	found := slices.DeleteFunc(slices.Clone(all.Items), func(job v1alpha1.RunnerJob) bool {
		return out.Pool != "" && out.Pool != job.Namespace+"/"+job.Status.Pool || !matches(&job, out.Search)
	})

	count := map[string]int{"": len(found)}
	for i := range found {
		count[string(found[i].Spec.State)]++
	}

	for _, state := range []string{
		"", string(v1alpha1.JobQueued), string(v1alpha1.JobWaiting), string(v1alpha1.JobRunning), string(v1alpha1.JobCompleted),
	} {
		out.States = append(out.States, choice{
			Name: cmp.Or(state, "All"), Count: count[state], Chosen: state == out.State,
			URL: "/jobs" + with(query, "state", state, "page", ""),
		})
	}

	if out.State != "" {
		found = slices.DeleteFunc(found, func(job v1alpha1.RunnerJob) bool { return string(job.Spec.State) != out.State })
	}

	jobs.Sort(found)
	h.rows(out, found, query)

	return &page{Title: "Jobs", Area: "jobs", Live: true, Data: out, Missing: h.missing(live.KindJob)}, nil
}

// rows takes one page of the jobs.
func (h *handler) rows(out *jobList, found []v1alpha1.RunnerJob, query url.Values) {
	last := max((len(found)-1)/perPage, 0)
	at, _ := strconv.Atoi(query.Get("page"))
	at = min(max(at-1, 0), last)

	out.Total, out.From, out.To = len(found), at*perPage+1, min((at+1)*perPage, len(found))

	if at > 0 {
		out.PreviousURL = "/jobs" + with(query, "page", strconv.Itoa(at))
	}

	if at < last {
		out.NextURL = "/jobs" + with(query, "page", strconv.Itoa(at+2))
	}

	for i := at * perPage; i < out.To; i++ {
		out.Jobs = append(out.Jobs, jobs.View(&found[i], h.Clock.Now()))
	}
}

// matches says whether a job has the words in what people call it by.
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

// with gives a query with other values, empty ones taken out.
func with(query url.Values, pairs ...string) string {
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

func key(r *http.Request) client.ObjectKey {
	return client.ObjectKey{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
}

// oneJob is a job with its phases, as shares of its life.
type oneJob struct {
	jobs.Explained

	Phases []phase
}

func (h *handler) job(r *http.Request) (*page, error) {
	of, err := jobs.Explain(r.Context(), h.View, h.View.Live, key(r), h.Clock.Now())
	if err != nil {
		return nil, err
	}

	return &page{
		Title: cmp.Or(of.Name, of.Job.Job), Area: "job", Live: true,
		Data: oneJob{of, phasesOf(of.Timeline, h.Clock.Now())}, Missing: h.missing(live.KindMachine),
	}, nil
}

// onePool is a pool with its machines and jobs.
type onePool struct {
	live.Pool

	Machines []machine
	Jobs     []jobs.Job
	MoreJobs int
}

func (h *handler) pool(r *http.Request) (*page, error) {
	var pool v1alpha1.RunnerPool
	if err := h.View.Get(r.Context(), key(r), &pool); err != nil {
		return nil, fmt.Errorf("read pool: %w", err)
	}

	machines, err := h.machinesOf(r.Context(), func(claim *v1alpha1.MachineClaim) bool {
		return claim.Namespace == pool.Namespace && poolOf(claim) == pool.Name
	})
	if err != nil {
		return nil, err
	}

	var all v1alpha1.RunnerJobList
	if err := h.View.List(r.Context(), &all); err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}

	found := slices.DeleteFunc(slices.Clone(all.Items), func(job v1alpha1.RunnerJob) bool {
		return job.Namespace != pool.Namespace || job.Status.Pool != pool.Name
	})
	jobs.Sort(found)

	out := onePool{Pool: live.PoolOf(&pool), Machines: machines, MoreJobs: max(len(found)-fewJobs, 0)}
	for i := range found[:min(len(found), fewJobs)] {
		out.Jobs = append(out.Jobs, jobs.View(&found[i], h.Clock.Now()))
	}

	return &page{
		Title: pool.Name, Area: "pool", Live: true, Data: out, Missing: h.missing(live.KindMachine, live.KindJob),
	}, nil
}

// machine is a machine in a list.
type machine struct {
	jobs.VM

	*v1alpha1.MachineClaim

	Pool string
	// Job that it has, by the name of its RunnerJob.
	Job string
	// Ready is its condition.
	Ready live.Ready
}

func poolOf(claim *v1alpha1.MachineClaim) string {
	if ref := claim.Spec.RunnerPoolRef; ref != nil {
		return ref.Name
	}

	return ""
}

func machineOf(claim *v1alpha1.MachineClaim) machine {
	out := machine{
		VM: jobs.VMOf(claim), MachineClaim: claim, Pool: poolOf(claim), Ready: live.ReadyOf(claim.Status.Conditions),
	}
	if info := claim.Status.BootstrapInfo; info != nil {
		out.Job = cmp.Or(info.Job, info.BoundJob)
	}

	return out
}

// machinesOf reads machines, the newest first.
func (h *handler) machinesOf(ctx context.Context, which func(*v1alpha1.MachineClaim) bool) ([]machine, error) {
	var claims v1alpha1.MachineClaimList
	if err := h.View.List(ctx, &claims); err != nil {
		return nil, fmt.Errorf("list machine claims: %w", err)
	}

	var out []machine

	for i := range claims.Items {
		if which(&claims.Items[i]) {
			out = append(out, machineOf(&claims.Items[i]))
		}
	}

	slices.SortFunc(out, func(a, b machine) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})

	return out, nil
}

// machineList is the page of machines.
type machineList struct {
	Machines []machine
	// More are not shown.
	More int
}

func (h *handler) machines(r *http.Request) (*page, error) {
	all, err := h.machinesOf(r.Context(), func(*v1alpha1.MachineClaim) bool { return true })
	if err != nil {
		return nil, err
	}

	const most = 500

	out := machineList{all[:min(len(all), most)], max(len(all)-most, 0)}

	return &page{Title: "Machines", Area: "machines", Live: true, Data: out, Missing: h.missing(live.KindMachine)}, nil
}

// oneMachine is a machine with the moments of its life.
type oneMachine struct {
	machine

	Moments []jobs.Moment
	Phases  []phase
}

func (h *handler) machine(r *http.Request) (*page, error) {
	var claim v1alpha1.MachineClaim
	if err := h.View.Get(r.Context(), key(r), &claim); err != nil {
		return nil, fmt.Errorf("read machine claim: %w", err)
	}

	moments := momentsOf(&claim)

	return &page{Title: claim.Name, Area: "machine", Live: true, Data: oneMachine{
		machineOf(&claim), moments, phasesOf(moments, h.Clock.Now()),
	}}, nil
}

func (h *handler) clusters(r *http.Request) (*page, error) {
	summary, err := h.View.Summary(r.Context(), h.Clock.Now())
	if err != nil {
		return nil, err
	}

	return &page{
		Title:   "Hypervisors",
		Area:    "clusters",
		Live:    true,
		Data:    summary.Clusters,
		Missing: h.missing(live.KindCluster),
	}, nil
}

// node is a node of a hypervisor cluster.
type node struct {
	v1alpha1.HypervisorNodeStatus

	Ready       live.Ready
	CPU, Memory live.Usage
	Machines    int
}

// oneCluster is a cluster with its nodes.
type oneCluster struct {
	live.Cluster

	Nodes []node
}

func (h *handler) cluster(r *http.Request) (*page, error) {
	var cluster v1alpha1.HypervisorCluster
	if err := h.View.Get(r.Context(), client.ObjectKey{Name: r.PathValue("name")}, &cluster); err != nil {
		return nil, fmt.Errorf("read cluster: %w", err)
	}

	machines, err := h.machinesOf(r.Context(), func(claim *v1alpha1.MachineClaim) bool {
		return claim.Status.VMRef != nil && claim.Status.VMRef.HypervisorCluster == cluster.Name
	})
	if err != nil {
		return nil, err
	}

	count := map[string]int{}
	for _, machine := range machines {
		count[machine.Node]++
	}

	out := oneCluster{Cluster: live.ClusterOf(&cluster)}

	for _, status := range cluster.Status.Nodes {
		cpu, memory := live.UsageOf(&status)
		out.Nodes = append(out.Nodes, node{status, live.ReadyOf(status.Conditions), cpu, memory, count[status.Name]})
	}

	return &page{Title: cluster.Name, Area: "cluster", Live: true, Data: out, Missing: h.missing(live.KindMachine)}, nil
}

// host is a host of any kind.
type host struct {
	metav1.ObjectMeta

	Kind, Fleet, Address string
	Status               *infrav1.HostStatus
	Ready                live.Ready
}

// hostFleet is a fleet of hosts.
type hostFleet struct {
	*infrav1.HostFleet

	Ready live.Ready
	Hosts []host
}

func (h *handler) hosts(r *http.Request) (*page, error) {
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
		at := client.ObjectKey{Namespace: meta.Namespace, Name: fleet}
		byFleet[at] = append(byFleet[at], host{meta, kind, fleet, address, status, live.ReadyOf(status.Conditions)})
	}

	for i := range linux.Items {
		one := &linux.Items[i]
		add(live.KindLinux, one.Spec.FleetName, one.Spec.Address, one.ObjectMeta, &one.Status.HostStatus)
	}

	for i := range macs.Items {
		one := &macs.Items[i]

		address := ""
		if len(one.Status.Addresses) > 0 {
			address = one.Status.Addresses[0].Address
		}

		add(live.KindMac, one.Spec.FleetName, address, one.ObjectMeta, &one.Status.HostStatus)
	}

	var out []hostFleet

	for i := range fleets.Items {
		one := &fleets.Items[i]
		hosts := byFleet[client.ObjectKeyFromObject(one)]
		slices.SortFunc(hosts, func(a, b host) int { return cmp.Compare(a.Name, b.Name) })
		out = append(out, hostFleet{one, live.ReadyOf(one.Status.Conditions), hosts})
	}

	slices.SortFunc(out, func(a, b hostFleet) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})

	return &page{
		Title: "Hosts", Area: "hosts", Live: true, Data: out, Missing: h.missing(live.KindFleet, live.KindLinux, live.KindMac),
	}, nil
}

// oneBridge is a bridge.
type oneBridge struct {
	*bridgev1.DPFHCPBridge

	Ready live.Ready
}

func (h *handler) bridges(r *http.Request) (*page, error) {
	var all bridgev1.DPFHCPBridgeList
	if err := h.View.List(r.Context(), &all); err != nil {
		return nil, fmt.Errorf("list bridges: %w", err)
	}

	var out []oneBridge
	for i := range all.Items {
		out = append(out, oneBridge{&all.Items[i], live.ReadyOf(all.Items[i].Status.Conditions)})
	}

	slices.SortFunc(out, func(a, b oneBridge) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})

	return &page{Title: "Bridges", Area: "bridges", Live: true, Data: out, Missing: h.missing(live.KindBridge)}, nil
}
