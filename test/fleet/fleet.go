// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/networking"
	"github.com/hyperfleet/hyperfleet/runners"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	simgithub "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// Names of the objects that a Fleet makes.
const (
	Template      = "template"
	Pool          = "pool"
	proxmoxSecret = "proxmox"
	githubSecret  = "github"
	hookSecret    = "webhook"
	hookValue     = "a webhook secret"
	// fleetLabel tells the clusters of the fleets of one API server apart.
	fleetLabel = "fleet"
)

// Fleet is one tenant's world.
type Fleet struct {
	T         testing.TB
	Env       *kube.Env
	Client    client.Client
	Namespace string
	// Cluster is the name of the HypervisorCluster.
	Cluster string
	PVE     *pve.Server
	GitHub  *githubtest.Server
	// OperatorUID marks what the operator makes.
	OperatorUID string
	// Runners is the area's configuration; change it before Start.
	Runners config.Runners
	// Front is what the forge sends webhooks to and machines report to; it outlives
	// operators.
	Front *Front
	// Hypervisors by spec.provider; change them before Start.
	Hypervisors map[string]hypervisor.Factory
	// Identity attests machines, in TrustDomain; set both before Start. Nil: nobody does.
	Identity    identity.Registry
	TrustDomain string
	// Networking has the networking area run beside the runners', from Start on. The scheme
	// needs the infrastructure group for it.
	Networking bool
	// DevID is the authority over the device identities of machines with a TPM.
	DevID config.DevID
	// ReportKey is what claim codes and report tokens are made of; 32 bytes.
	ReportKey []byte
	// Neighbours are other namespaces that the operator looks after; set them before Start.
	Neighbours []string
	// Watch, if set before Start, is put around the operator's way to the API server.
	Watch func(http.RoundTripper) http.RoundTripper
	// Log, if set before Start, gets the operator's log at level debug.
	Log io.Writer
	// Registry has the metrics of the operator that was started last.
	Registry *prometheus.Registry
	// Clock is what the operator goes by, from Start on; at first it is that of all the world,
	// which Options name.
	Clock clock.WithTicker
	// Patience is how long anything may take before the test gives up on it.
	Patience time.Duration
	// Poll is how often a test looks whether something has come about.
	Poll time.Duration

	// time is how the API server's is told where Clock is not the real one.
	time *apiTime

	mu  sync.Mutex
	run *running
	// sites are the hypervisors beside PVE.
	sites []*pve.Server
	guest func(pve.GuestVM)
}

type running struct {
	cancel context.CancelFunc
	ended  chan error
}

// Options change the world.
type Options struct {
	Model  pve.Model
	GitHub simgithub.Options
	// OperatorUID defaults to the namespace's name.
	OperatorUID string
	// PVE and Namespace of another Fleet, to share its hypervisor.
	PVE *pve.Server
	// Clock of the operator and its queues, the hypervisor, the forge and the guests; the API
	// server's times are told by it. Nil for the real one.
	Clock clock.WithTicker
	// Guest, if set, is what machines do; run is what they do without it.
	Guest func(vm pve.GuestVM, run func(pve.GuestVM))
}

// Model is a cluster where everything takes a moment and nothing more, and whose
// guests run the job that GitHub gives them.
func Model() pve.Model {
	m := pve.DefaultModel()
	m.StatusLag = 50 * time.Millisecond
	m.Delays = pve.Delays{Clone: 20 * time.Millisecond, Boot: 10 * time.Millisecond}

	return m
}

// New makes a namespace, a hypervisor, a forge, and the Secrets that lead to them.
func New(t testing.TB, env *kube.Env, opts Options) *Fleet {
	t.Helper()

	f := &Fleet{
		T: t, Env: env, Client: env.Client, Namespace: env.Namespace(t), PVE: opts.PVE,
		Front: newFront(t), OperatorUID: opts.OperatorUID, Patience: patience, Poll: poll,
		ReportKey: []byte(strings.Repeat("k", 32)), Clock: opts.Clock,
	}
	f.Cluster = f.Namespace
	f.Hypervisors = map[string]hypervisor.Factory{"proxmox": proxmox.New}

	if f.OperatorUID == "" {
		f.OperatorUID = f.Namespace
	}

	if f.Clock == nil {
		f.Clock = clock.RealClock{}
	} else {
		f.time = &apiTime{clock: f.Clock, told: map[string]string{}}
	}

	opts.GitHub.Clock = f.Clock
	opts.GitHub.Webhook = control.WebhookTarget{URL: f.Front.URL + "/webhooks/github", Secret: hookValue}
	f.GitHub = githubtest.New(t, opts.GitHub)

	f.guest = guestBy(t, f.Clock)
	if run := f.guest; opts.Guest != nil {
		f.guest = func(vm pve.GuestVM) { opts.Guest(vm, run) }
	}

	if f.PVE == nil {
		f.PVE = f.newPVE(opts.Model)
	}

	f.Runners = config.Default().Runners
	f.Runners.PlatformURLs = []string{f.GitHub.URL}

	if opts.Clock == nil {
		f.hurry()
	}

	f.secret(proxmoxSecret, map[string]string{"tokenId": pve.DefaultTokenID, "tokenSecret": pve.DefaultSecret})
	f.secret(githubSecret, map[string]string{"pat": githubtest.PAT})
	f.secret(hookSecret, map[string]string{"secret": hookValue})

	return f
}

// Guest is what machines do, where their model does not say.
func (f *Fleet) Guest() func(pve.GuestVM) { return f.guest }

// newPVE starts a hypervisor.
func (f *Fleet) newPVE(model pve.Model) *pve.Server {
	f.T.Helper()

	if model.Cluster == "" {
		model = Model()
	}

	if model.Guest.Script == nil && model.Guest.Kind == pve.GuestNothing {
		model.Guest.Script = f.guest
	}

	return pvetest.New(f.T, model, pve.WithClock(f.Clock))
}

// hurry has the operator look more often than it does by itself, since nobody waits for minutes.
func (f *Fleet) hurry() {
	f.Runners.ClusterInterval = 2 * time.Second
	f.Runners.TemplateInterval = 2 * time.Second
	f.Runners.OrphanInterval = 2 * time.Second
	f.Runners.OrphanAge = time.Second
	f.Runners.TaskInterval = 25 * time.Millisecond
	f.Runners.ListInterval = 100 * time.Millisecond
}

// In is the same fleet for a part of its test. The operator stays the whole test's.
func (f *Fleet) In(t testing.TB) *Fleet {
	t.Helper()

	return &Fleet{
		T: t, Env: f.Env, Client: f.Client, Namespace: f.Namespace, Cluster: f.Cluster, PVE: f.PVE, GitHub: f.GitHub,
		OperatorUID: f.OperatorUID, Runners: f.Runners, Front: f.Front, ReportKey: f.ReportKey, Registry: f.Registry,
		Clock: f.Clock, Patience: f.Patience, Poll: f.Poll, sites: f.Servers()[1:], guest: f.guest,
	}
}

func (f *Fleet) secret(name string, data map[string]string) {
	f.T.Helper()
	f.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name}, StringData: data})
}

// Create makes an object, and fails the test if it can't.
func (f *Fleet) Create(obj client.Object) {
	f.T.Helper()

	if err := f.Client.Create(f.T.Context(), obj); err != nil {
		f.T.Fatalf("create %s: %v", obj.GetName(), err)
	}
}

func source(secret, key string) v1alpha1.SecretValueSource {
	return v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: secret, Key: key}}
}

// NewCluster is the HypervisorCluster of the fleet's hypervisor.
func (f *Fleet) NewCluster() *v1alpha1.HypervisorCluster {
	id, secret := source(proxmoxSecret, "tokenId"), source(proxmoxSecret, "tokenSecret")

	return &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: f.Cluster, Labels: map[string]string{fleetLabel: f.Cluster}},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: "proxmox", Endpoint: f.PVE.URL() + "/api2/json",
			Credentials:    v1alpha1.HypervisorCredentials{TokenID: &id, TokenSecret: &secret},
			TLS:            &v1alpha1.HypervisorTLS{Fingerprint: f.PVE.Fingerprint()},
			DefaultStorage: "local-lvm", ISOStorage: "local", DefaultNetwork: "vmbr0",
		},
	}
}

// NewTemplate is the fleet's HypervisorMachineTemplate.
func (f *Fleet) NewTemplate() *v1alpha1.HypervisorMachineTemplate {
	pat := source(githubSecret, "pat")

	return &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: Template},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{
			HypervisorClusterRef: v1alpha1.LocalObjectReference{Name: f.Cluster},
			Template: v1alpha1.TemplateSource{
				Proxmox: &v1alpha1.ProxmoxTemplate{TemplateName: pve.DefaultTemplate},
			},
			Resources: v1alpha1.MachineResources{CPU: 2, Memory: resource.MustParse("2Gi")},
			Bootstrap: v1alpha1.Bootstrap{
				Method: v1alpha1.BootstrapRunnerToken,
				Config: &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{
					Credentials: &pat, APIURL: f.GitHub.URL, Owner: "octo-org", Repository: "octo-repo",
				}},
			},
		},
	}
}

// NewPool is the fleet's RunnerPool, from 0 to max machines.
func (f *Fleet) NewPool(maxReplicas int32) *v1alpha1.RunnerPool {
	return &v1alpha1.RunnerPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: Pool},
		Spec: v1alpha1.RunnerPoolSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: Template},
			Workload: v1alpha1.Workload{
				Type:    v1alpha1.WorkloadGitHubActions,
				Config:  &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Labels: []string{"linux"}}},
				Webhook: &v1alpha1.Webhook{Secret: source(hookSecret, "secret")},
			},
			Scaling: v1alpha1.Scaling{MaxReplicas: maxReplicas},
		},
	}
}

// NewClaim is a claim of nobody's pool.
func (f *Fleet) NewClaim(name string) *v1alpha1.MachineClaim {
	return &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: Template},
			WorkloadConfig: v1alpha1.Workload{
				Type:   v1alpha1.WorkloadGitHubActions,
				Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Labels: []string{"linux"}}},
			},
		},
	}
}

// Populate makes cluster, template and pool.
func (f *Fleet) Populate(maxReplicas int32) {
	f.T.Helper()

	f.CreateCluster(f.NewCluster())
	f.Create(f.NewTemplate())
	f.Create(f.NewPool(maxReplicas))
}

// CreateCluster makes the cluster, which goes with the test.
func (f *Fleet) CreateCluster(cluster *v1alpha1.HypervisorCluster) {
	f.T.Helper()
	f.Create(cluster)
	f.T.Cleanup(func() { f.deleteCluster(cluster.Name) })
}

// SetSecret changes one value of a Secret.
func (f *Fleet) SetSecret(name, key, value string) {
	f.T.Helper()

	var secret corev1.Secret
	if err := f.Client.Get(f.T.Context(), client.ObjectKey{Namespace: f.Namespace, Name: name}, &secret); err != nil {
		f.T.Fatalf("get secret %s: %v", name, err)
	}

	secret.Data[key] = []byte(value)
	if err := f.Client.Update(f.T.Context(), &secret); err != nil {
		f.T.Fatalf("update secret %s: %v", name, err)
	}
}

// deleteCluster takes a cluster, which no namespace takes along, away.
func (f *Fleet) deleteCluster(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	var cluster v1alpha1.HypervisorCluster
	if err := f.Client.Get(ctx, client.ObjectKey{Name: name}, &cluster); err != nil {
		return
	}

	cluster.Finalizers = nil
	_ = f.Client.Update(ctx, &cluster)
	_ = f.Client.Delete(ctx, &cluster)
}

// Start runs an operator until Stop or the test's end.
func (f *Fleet) Start() {
	f.T.Helper()

	ctx, cancel := context.WithCancel(context.Background())

	mgr, routes, err := f.manager(ctx)
	if err != nil {
		cancel()
		f.T.Fatalf("set up operator: %v", err)
	}

	run := &running{cancel: cancel, ended: make(chan error, 1)}
	go func() { run.ended <- mgr.Start(ctx) }()

	f.Front.Serve(routes)
	f.mu.Lock()
	f.run = run
	f.mu.Unlock()
	f.T.Cleanup(f.Stop)
}

// Stop ends the operator and waits for it.
func (f *Fleet) Stop() {
	f.mu.Lock()
	run := f.run
	f.run = nil
	f.mu.Unlock()

	if run == nil {
		return
	}

	f.Front.Serve(nil)
	run.cancel()

	if err := <-run.ended; err != nil && !errors.Is(err, context.Canceled) {
		f.T.Errorf("operator ended: %v", err)
	}
}

func (f *Fleet) manager(ctx context.Context) (ctrl.Manager, http.Handler, error) {
	logger := f.logger()
	own, err := f.tenant("hyperfleet-runners", logger)
	if err != nil {
		return nil, nil, err
	}

	f.Registry = prometheus.NewRegistry()
	area := &runners.Area{
		Config: f.Runners, Namespace: f.Namespace,
		Settings: vmspec.Settings{
			OperatorUID: f.OperatorUID, GuestURL: f.Front.URL, ReportKey: f.ReportKey,
			TrustDomain: f.TrustDomain, DevID: f.DevID.CertFile != "",
		},
		Identity:     f.Identity,
		DevID:        f.DevID,
		Hypervisors:  f.Hypervisors,
		Platforms:    operator.Platforms(),
		Registry:     f.Registry,
		Clock:        f.Clock,
		Log:          logger,
		MaxBodyBytes: 1 << 20,
		WebhookURL:   f.Front.URL,
	}

	routes, err := area.Setup(ctx, own)
	if err != nil {
		return nil, nil, fmt.Errorf("set up area: %w", err)
	}

	if f.Networking {
		if err := f.networking(ctx, own, logger); err != nil {
			return nil, nil, fmt.Errorf("set up networking: %w", err)
		}
	}

	return own, routes, nil
}

// networking adds the networking area, as a manager of its own, to one that runs it.
func (f *Fleet) networking(ctx context.Context, beside ctrl.Manager, logger *slog.Logger) error {
	mgr, err := f.tenant("hyperfleet-networking", logger)
	if err != nil {
		return err
	}

	if err := beside.Add(mgr); err != nil {
		return fmt.Errorf("add the manager: %w", err)
	}

	area := &networking.Area{
		Config: config.Default().Networking, Registry: f.Registry, Clock: f.Clock, Log: logger,
		OperatorUID: f.OperatorUID,
		Secret: func(context.Context, v1alpha1.SecretKeySelector, credential.Sent) (string, error) {
			return "", errNoSecret
		},
	}

	return area.Setup(ctx, mgr)
}

// errNoSecret: fleets register no machines in DNS.
var errNoSecret = errors.New("there is no Secret")

func (f *Fleet) logger() *slog.Logger {
	if f.Log != nil {
		return log.New(f.Log, log.Options{Level: slog.LevelDebug})
	}

	return log.New(&testWriter{t: f.T}, log.Options{Level: slog.LevelInfo})
}

func unlimited(cfg *rest.Config) *rest.Config {
	out := rest.CopyConfig(cfg)
	out.QPS = -1

	return out
}

// Front is the address that forges and machines know. Behind it operators come and go.
type Front struct {
	URL string

	mu      sync.Mutex
	handler http.Handler
}

func newFront(t testing.TB) *Front {
	t.Helper()

	f := &Front{}
	server := httptest.NewServer(f)
	f.URL = server.URL
	t.Cleanup(server.Close)

	return f
}

// Serve lets the handler answer from now on; nil is nobody.
func (f *Front) Serve(handler http.Handler) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.handler = handler
}

// ServeHTTP passes the request on to the operator that runs.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	handler := f.handler
	f.mu.Unlock()

	if handler == nil {
		http.Error(w, "no operator runs", http.StatusServiceUnavailable)

		return
	}

	handler.ServeHTTP(w, r)
}

// testWriter writes the operator's log to the test's, as long as that takes it.
type testWriter struct {
	t    testing.TB
	mu   sync.Mutex
	over bool
	once sync.Once
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.once.Do(func() {
		w.t.Cleanup(func() {
			w.mu.Lock()
			defer w.mu.Unlock()

			w.over = true
		})
	})
	w.mu.Lock()
	defer w.mu.Unlock()

	if !w.over {
		w.t.Log(strings.TrimSpace(string(p)))
	}

	return len(p), nil
}
