// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/runners"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	clusterName  = "cloud"
	templateName = "linux"
	secretName   = "secrets"
	operatorUID  = "simulation"
	// callTime is the time of a call on the way to the API server and back. writeTime is the processor time of the API
	// server for a write, and apiCores the number of its processors.
	callTime, writeTime, apiCores = time.Millisecond, 6 * time.Millisecond, 4
	// drainTime is how long the simulation waits for the last jobs.
	drainTime = 30 * time.Minute
)

// Load is what is simulated.
type Load struct {
	JobsPerHour, Minutes, Pools int
	// Kept is the number of completed jobs in each namespace at the start.
	Kept    int
	JobTime time.Duration
	// MaxReplicas limits the machines of each pool. 0 means no limit.
	MaxReplicas int32
}

// Result is what the simulation has found.
type Result struct {
	// Machines is the number of machines that were started.
	Jobs, Completed, Machines, Left, Refused int
	// Delay is the time from the queueing of a job until it runs, without the clone and the boot of its machine.
	Delay [2]time.Duration
	// Leader is the share of one processor that the operator has used, and API that of all processors of the API server,
	// while jobs were queued.
	Leader, API float64
	// PerJob is the processor time of the operator per job, and Writes the number of writes.
	PerJob time.Duration
	Writes float64
	// Kinds are the writes per job of each kind.
	Kinds map[string]float64
	// JobBytes is the size of a completed job in the API server.
	JobBytes int
}

// String returns the result as a table.
func (r Result) String() string {
	kinds := make([]string, 0, len(r.Kinds))
	for kind, count := range r.Kinds {
		kinds = append(kinds, fmt.Sprintf("%s %.2f", kind, count))
	}

	slices.Sort(kinds)

	return fmt.Sprintf("%d jobs: queued to running, without clone and boot: p50 %.2f s, p95 %.2f s\n"+
		"leader: %.2f of one processor, %.1f ms per job\n"+
		"API server: %.2f of its processors, %.1f writes per job (%s), %d bytes of a completed job",
		r.Jobs, r.Delay[0].Seconds(), r.Delay[1].Seconds(), r.Leader, float64(r.PerJob.Microseconds())/1000, r.API, r.Writes,
		strings.Join(kinds, ", "), r.JobBytes)
}

// simulation is a fleet of models with a real operator.
type simulation struct {
	testing.TB

	load     Load
	models   *processorTime
	leader   *leader
	api      *apiServer
	apiSlots chan struct{}
	cloud    *cloud
	platform *platform
	scheme   *runtime.Scheme
	config   *rest.Config
	client   client.Client
}

// Simulate runs the load. It must run in a bubble of testing/synctest.
func Simulate(t testing.TB, load Load) Result {
	t.Helper()

	s := &simulation{TB: t, load: load, models: &processorTime{}, apiSlots: make(chan struct{}, apiCores), scheme: newScheme(t)}
	s.leader = newLeader(s.models)
	s.api = newAPIServer(s.scheme, s.models, s.delay)
	s.platform = &platform{t: t, duration: load.JobTime, queued: map[string][]*job{}}
	s.cloud = newCloud(t.Context(), s.platform.boot)
	s.config = &rest.Config{
		Host: "http://api", Transport: s.api, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON, AcceptContentTypes: runtime.ContentTypeJSON},
	}

	var err error
	if s.client, err = client.New(s.config, client.Options{Scheme: s.scheme, Mapper: newMapper(s.scheme)}); err != nil {
		t.Fatal(err)
	}

	s.createObjects()

	stop := s.startOperator()
	defer stop()

	s.waitUntilReady()

	return s.run()
}

func newScheme(t testing.TB) *runtime.Scheme {
	t.Helper()

	out := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(out); err != nil {
			t.Fatal(err)
		}
	}

	return out
}

// newMapper returns the mapping that discovery would return.
func newMapper(scheme *runtime.Scheme) meta.RESTMapper {
	out := meta.NewDefaultRESTMapper(nil)

	for kind := range scheme.AllKnownTypes() {
		var scope meta.RESTScope = meta.RESTScopeNamespace
		if kind.Kind == "HypervisorCluster" || kind.Kind == "Namespace" {
			scope = meta.RESTScopeRoot
		}

		out.Add(kind, scope)
	}

	return out
}

// delay waits as long as a call to the API server takes: until the operator has done its work before the call, and until the
// API server has a processor for a write.
func (s *simulation) delay(isWrite bool) {
	s.leader.wait()
	time.Sleep(callTime)

	if !isWrite {
		return
	}

	s.apiSlots <- struct{}{}

	time.Sleep(writeTime)
	<-s.apiSlots
}

// poolPrefix begins the name of a pool, which is also the name of its namespace, its repository and its label.
const poolPrefix = "team-"

func poolName(number int) string { return poolPrefix + strconv.Itoa(number) }

func (s *simulation) create(object client.Object) {
	s.Helper()

	if err := s.client.Create(s.Context(), object); err != nil {
		s.Fatalf("create %T: %v", object, err)
	}
}

// createObjects creates the cluster, and the objects of each namespace.
func (s *simulation) createObjects() {
	s.Helper()

	secret := func(key string) *v1alpha1.SecretValueSource {
		return &v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: secretName, Key: key}}
	}

	s.create(&v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: clusterName},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: v1alpha1.ProviderProxmox, Endpoint: "https://cloud.example", DefaultStorage: "local", DefaultNetwork: "net",
			Credentials: v1alpha1.HypervisorCredentials{TokenID: secret("pat"), TokenSecret: secret("pat")},
		},
	})

	maxReplicas := s.load.MaxReplicas
	if maxReplicas == 0 {
		maxReplicas = 1 << 20
	}

	for number := range s.load.Pools {
		namespace := poolName(number)
		s.create(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secretName},
			Data:       map[string][]byte{"pat": []byte("ghp_x"), "hook": []byte(hookValue)},
		})
		s.create(&v1alpha1.HypervisorMachineTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: templateName},
			Spec: v1alpha1.HypervisorMachineTemplateSpec{
				HypervisorClusterRef: v1alpha1.LocalObjectReference{Name: clusterName},
				Template:             v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{TemplateName: templateName}},
				Resources:            v1alpha1.MachineResources{CPU: 2, Memory: resource.MustParse("2Gi")},
				Bootstrap: v1alpha1.Bootstrap{
					Method: v1alpha1.BootstrapRunnerToken,
					Config: &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{
						Credentials: secret("pat"), Owner: owner, Repository: namespace,
					}},
				},
			},
		})
		s.create(&v1alpha1.RunnerPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: namespace},
			Spec: v1alpha1.RunnerPoolSpec{
				TemplateRef: v1alpha1.LocalObjectReference{Name: templateName},
				Workload: v1alpha1.Workload{
					Type:    v1alpha1.WorkloadGitHubActions,
					Config:  &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Labels: []string{namespace}}},
					Webhook: &v1alpha1.Webhook{Secret: *secret("hook")},
				},
				Scaling: v1alpha1.Scaling{MaxReplicas: maxReplicas},
			},
		})
		s.createKeptJobs(namespace)
	}
}

// createKeptJobs creates completed jobs of machines that no longer exist.
func (s *simulation) createKeptJobs(namespace string) {
	s.Helper()

	for number := range s.load.Kept {
		done := &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("kept-%06d", number)}}
		done.Spec = workload.Job{
			Platform: v1alpha1.WorkloadGitHubActions, ID: strconv.Itoa(1<<30 + number), Repository: owner + "/" + namespace,
			Labels: []string{"self-hosted", namespace}, State: v1alpha1.JobCompleted, Conclusion: "success",
			RunnerName: fmt.Sprintf("kept-%06d", number), CompletedAt: &metav1.Time{Time: time.Now()},
		}
		s.create(done)
	}
}

// startOperator starts the area runners, and returns a function that stops it.
func (s *simulation) startOperator() (stop func()) {
	s.Helper()

	ctx, cancel := context.WithCancel(s.Context())

	mgr, err := ctrl.NewManager(s.config, ctrl.Options{
		Scheme: s.scheme, Logger: logr.Discard(), NewCache: watch.NewCache(ctx),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return newMapper(s.scheme), nil },
		Cache:          cache.Options{DefaultTransform: watch.NewTransform()},
		Metrics:        metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		s.Fatal(err)
	}

	settings := config.Default().Runners

	egress, err := operator.NewEgressPolicy(settings)
	if err != nil {
		s.Fatal(err)
	}

	connect := func(_ hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
		s.cloud.wake = options.Wake

		return s.cloud, nil
	}
	area := &runners.Area{
		Config: settings, Namespace: poolName(0), Egress: egress,
		Settings: vmspec.Settings{
			OperatorUID: operatorUID, GuestURL: "http://operator", ReportKey: []byte(strings.Repeat("k", 32)),
		},
		Hypervisors: map[string]hypervisor.Factory{v1alpha1.ProviderProxmox: connect},
		Platforms:   map[string]workload.Platform{v1alpha1.WorkloadGitHubActions: s.platform},
		Registry:    prometheus.NewRegistry(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		MaxBodyBytes: 1 << 20, WebhookURL: "http://operator",
	}

	if s.platform.operator, err = area.Setup(ctx, mgr); err != nil {
		s.Fatal(err)
	}

	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()

	return func() {
		cancel()

		if err := <-ended; err != nil {
			s.Errorf("run operator: %v", err)
		}
	}
}

// waitUntilReady waits until all pools can create machines.
func (s *simulation) waitUntilReady() {
	s.Helper()

	for range 600 {
		time.Sleep(time.Second)

		var pools v1alpha1.RunnerPoolList
		if err := s.client.List(s.Context(), &pools); err != nil {
			s.Fatal(err)
		}

		if !slices.ContainsFunc(pools.Items, func(pool v1alpha1.RunnerPool) bool { return !step.IsReady(&pool) }) {
			return
		}
	}

	var (
		templates v1alpha1.HypervisorMachineTemplateList
		clusters  v1alpha1.HypervisorClusterList
	)

	_ = s.client.List(s.Context(), &templates)
	_ = s.client.List(s.Context(), &clusters)
	s.Fatalf("the pools are not ready: %+v\n%+v", templates.Items[0].Status, clusters.Items[0].Status)
}

// run queues the jobs, waits until all have ended, and returns what it has measured.
func (s *simulation) run() Result {
	s.Helper()

	count := s.load.JobsPerHour * s.load.Minutes / 60
	interval := time.Hour / time.Duration(s.load.JobsPerHour)
	before, began := s.countWrites(), time.Now()
	busy := s.leader.busy.Load()

	for number := range count {
		go s.platform.queue(poolName(number % s.load.Pools))

		time.Sleep(interval)
	}

	loaded := time.Since(began)
	share := float64(s.leader.busy.Load()-busy) / float64(loaded)
	writes := sum(s.countWrites()) - sum(before)

	for end := time.Now().Add(drainTime); time.Now().Before(end) && s.countLeft() > 0; {
		time.Sleep(10 * time.Second)
	}

	out := s.platform.summarize()
	out.Left, out.Leader, out.JobBytes = s.countLeft(), share, s.api.averageSize("runnerjobs")
	out.Machines = s.cloud.countStarts()
	out.API = float64(writes) * writeTime.Seconds() / (loaded.Seconds() * apiCores)
	out.PerJob = time.Duration((s.leader.busy.Load() - busy) / int64(count))
	out.Kinds = map[string]float64{}

	for kind, number := range s.countWrites() {
		if number -= before[kind]; number > 0 {
			out.Kinds[kind] = float64(number) / float64(count)
			out.Writes += out.Kinds[kind]
		}
	}

	return out
}

func sum(numbers map[string]int) int {
	out := 0
	for _, number := range numbers {
		out += number
	}

	return out
}

func (s *simulation) countWrites() map[string]int {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()

	return maps.Clone(s.api.writes)
}

// countLeft returns how many claims, machines and jobs have not ended.
func (s *simulation) countLeft() int {
	s.api.mu.Lock()
	claims := 0

	if found := s.api.tables["machineclaims"]; found != nil {
		claims = len(found.objects)
	}
	s.api.mu.Unlock()

	s.cloud.mu.Lock()
	defer s.cloud.mu.Unlock()

	return claims + len(s.cloud.byID) + s.platform.countOpen()
}

func (p *platform) countOpen() int {
	p.mu.Lock()
	defer p.mu.Unlock()

	open := 0

	for _, each := range p.jobs {
		if each.ended.IsZero() {
			open++
		}
	}

	return open
}

// summarize returns what the platform has seen.
func (p *platform) summarize() Result {
	p.mu.Lock()
	defer p.mu.Unlock()

	out := Result{Jobs: len(p.jobs), Refused: p.refused}

	var delays []time.Duration

	for _, each := range p.jobs {
		if !each.ended.IsZero() {
			out.Completed++
			delays = append(delays, each.startedAt.Sub(each.queuedAt)-cloneTime-bootTime)
		}
	}

	if len(delays) > 0 {
		slices.Sort(delays)
		out.Delay = [2]time.Duration{delays[len(delays)/2], delays[len(delays)*95/100]}
	}

	return out
}
