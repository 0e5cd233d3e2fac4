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

// Names of the objects that a Fleet creates.
const (
	Template      = "template"
	Pool          = "pool"
	proxmoxSecret = "proxmox"
	githubSecret  = "github"
	hookSecret    = "webhook"
	// HookValue is the secret of the webhooks of the pools of NewPool.
	HookValue = "a webhook secret"
	// fleetLabel is the label of a HypervisorCluster that names its fleet, because the fleets of one API server
	// share cluster-scoped objects.
	fleetLabel = "fleet"
)

// Fleet is the environment of one test: a namespace, its operator, a hypervisor and a CI platform.
type Fleet struct {
	T         testing.TB
	Env       *kube.Env
	Client    client.Client
	Namespace string
	// Cluster is the name of the HypervisorCluster.
	Cluster string
	PVE     *pve.Server
	GitHub  *githubtest.Server
	// OperatorUID is the operator's UID in the ownership records of VMs.
	OperatorUID string
	// Runners is the area's configuration. Change it before Start.
	Runners config.Runners
	// Front receives webhooks of the CI platform and reports of machines. It stays the same when the operator
	// is restarted.
	Front *Front
	// Hypervisors holds the hypervisor factories by spec.provider. Change them before Start.
	Hypervisors map[string]hypervisor.Factory
	// Identity registers machines for attestation in TrustDomain. Set both before Start. If Identity is nil,
	// machines cannot attest.
	Identity    identity.Registry
	TrustDomain string
	// Networking makes Start also run the networking area. The scheme must then contain the infrastructure
	// group.
	Networking bool
	// DevID is the certificate authority for the device identities of machines with a TPM.
	DevID config.DevID
	// ReportKey is the 32-byte key from which claim codes and report tokens are derived.
	ReportKey []byte
	// ExtraNamespaces are other namespaces that the operator watches. Set them before Start.
	ExtraNamespaces []string
	// WrapTransport, if set before Start, wraps the transport of the operator's client of the API server.
	WrapTransport func(http.RoundTripper) http.RoundTripper
	// PlatformNetwork, if set before Start, is the innermost transport of the operator's calls to CI platforms.
	PlatformNetwork http.RoundTripper
	// Log, if set before Start, receives the operator's log at level debug.
	Log io.Writer
	// Registry has the metrics of the operator that was started last.
	Registry *prometheus.Registry
	// Clock is the clock of the operator that Start starts. It is initially Options.Clock, which the other
	// parts of the environment use.
	Clock clock.WithTicker
	// Timeout limits each wait of the test.
	Timeout time.Duration
	// PollInterval is the interval at which a waiting test checks its condition.
	PollInterval time.Duration

	// timestamps rewrites the API server's timestamps. It is nil if the clock is the real clock.
	timestamps *timestampRewriter

	mu       sync.Mutex
	operator *operatorRun
	// sites are the additional hypervisors.
	sites []*pve.Server
	guest func(pve.GuestVM)
}

type operatorRun struct {
	cancel context.CancelFunc
	done   chan error
}

// Options configure a Fleet.
type Options struct {
	Model  pve.Model
	GitHub simgithub.Options
	// Namespace is the name of the namespace. If it is empty, New chooses one.
	Namespace string
	// OperatorUID defaults to the namespace's name.
	OperatorUID string
	// PVE is the hypervisor of another Fleet that this Fleet shares. If it is nil, New starts one.
	PVE *pve.Server
	// Clock is the clock of the operator and its queues, the hypervisor, the CI platform and the guests. The API
	// server's creation timestamps are rewritten to this clock. If it is nil, all use the real clock.
	Clock clock.WithTicker
	// Guest, if set, simulates the guests of machines. It may call run, which is the default guest.
	Guest func(vm pve.GuestVM, run func(pve.GuestVM))
}

// Model returns the model of a hypervisor cluster with short delays.
func Model() pve.Model {
	m := pve.DefaultModel()
	m.StatusLag = 50 * time.Millisecond
	m.Delays = pve.Delays{Clone: 20 * time.Millisecond, Boot: 10 * time.Millisecond}

	return m
}

// New creates a namespace, a hypervisor, a CI platform, and the Secrets with their credentials.
func New(t testing.TB, env *kube.Env, opts Options) *Fleet {
	t.Helper()

	f := &Fleet{
		T: t, Env: env, Client: env.Client, Namespace: env.NamespaceWithName(t, opts.Namespace), PVE: opts.PVE,
		Front: newFront(t), OperatorUID: opts.OperatorUID, Timeout: defaultTimeout, PollInterval: defaultPollInterval,
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
		f.timestamps = &timestampRewriter{clock: f.Clock, replacements: map[string]string{}}
	}

	opts.GitHub.Clock = f.Clock
	opts.GitHub.Webhook = control.WebhookTarget{URL: f.Front.URL + "/webhooks/github", Secret: HookValue}
	f.GitHub = githubtest.New(t, opts.GitHub)

	f.guest = newGuest(t, f.Clock)
	if run := f.guest; opts.Guest != nil {
		f.guest = func(vm pve.GuestVM) { opts.Guest(vm, run) }
	}

	if f.PVE == nil {
		f.PVE = f.startPVE(opts.Model)
	}

	f.Runners = config.Default().Runners
	f.Runners.PlatformURLs = []string{f.GitHub.URL}

	if opts.Clock == nil {
		f.shortenIntervals()
	}

	f.createSecret(proxmoxSecret, map[string]string{"tokenId": pve.DefaultTokenID, "tokenSecret": pve.DefaultSecret})
	f.createSecret(githubSecret, map[string]string{"pat": githubtest.PAT})
	f.createSecret(hookSecret, map[string]string{"secret": HookValue})

	return f
}

// Guest returns the guest of machines whose model sets none.
func (f *Fleet) Guest() func(pve.GuestVM) { return f.guest }

// startPVE starts a hypervisor. Its default model is Model, and its default guest is f.Guest.
func (f *Fleet) startPVE(model pve.Model) *pve.Server {
	f.T.Helper()

	if model.Cluster == "" {
		model = Model()
	}

	if model.Guest.Script == nil && model.Guest.Kind == pve.GuestNothing {
		model.Guest.Script = f.guest
	}

	return pvetest.New(f.T, model, pve.WithClock(f.Clock))
}

// shortenIntervals shortens the operator's intervals, because the default intervals of minutes are too long
// for tests.
func (f *Fleet) shortenIntervals() {
	f.Runners.ClusterInterval = 2 * time.Second
	f.Runners.TemplateInterval = 2 * time.Second
	f.Runners.OrphanInterval = 2 * time.Second
	f.Runners.OrphanAge = time.Second
	f.Runners.TaskInterval = 25 * time.Millisecond
	f.Runners.ListInterval = 100 * time.Millisecond
}

// ForSubtest returns a copy of the fleet for a subtest. The operator still belongs to the whole test.
func (f *Fleet) ForSubtest(t testing.TB) *Fleet {
	t.Helper()

	return &Fleet{
		T: t, Env: f.Env, Client: f.Client, Namespace: f.Namespace, Cluster: f.Cluster, PVE: f.PVE, GitHub: f.GitHub,
		OperatorUID: f.OperatorUID, Runners: f.Runners, Front: f.Front, ReportKey: f.ReportKey, Registry: f.Registry,
		Clock: f.Clock, Timeout: f.Timeout, PollInterval: f.PollInterval, sites: f.Servers()[1:], guest: f.guest,
	}
}

func (f *Fleet) createSecret(name string, data map[string]string) {
	f.T.Helper()
	f.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name}, StringData: data})
}

// Create creates an object. It fails the test if that is not possible.
func (f *Fleet) Create(obj client.Object) {
	f.T.Helper()

	if err := f.Client.Create(f.T.Context(), obj); err != nil {
		f.T.Fatalf("create %s: %v", obj.GetName(), err)
	}
}

func newSecretSource(secret, key string) v1alpha1.SecretValueSource {
	return v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: secret, Key: key}}
}

// NewCluster returns the HypervisorCluster of the fleet's hypervisor.
func (f *Fleet) NewCluster() *v1alpha1.HypervisorCluster {
	id, secret := newSecretSource(proxmoxSecret, "tokenId"), newSecretSource(proxmoxSecret, "tokenSecret")

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

// NewTemplate returns the fleet's HypervisorMachineTemplate.
func (f *Fleet) NewTemplate() *v1alpha1.HypervisorMachineTemplate {
	pat := newSecretSource(githubSecret, "pat")

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

// NewPool returns the fleet's RunnerPool with 0 to maxReplicas machines.
func (f *Fleet) NewPool(maxReplicas int32) *v1alpha1.RunnerPool {
	return &v1alpha1.RunnerPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: Pool},
		Spec: v1alpha1.RunnerPoolSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: Template},
			Workload: v1alpha1.Workload{
				Type:    v1alpha1.WorkloadGitHubActions,
				Config:  &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Labels: []string{"linux"}}},
				Webhook: &v1alpha1.Webhook{Secret: newSecretSource(hookSecret, "secret")},
			},
			Scaling: v1alpha1.Scaling{MaxReplicas: maxReplicas},
		},
	}
}

// NewClaim returns a claim that belongs to no pool.
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

// Populate creates the cluster, the template and the pool.
func (f *Fleet) Populate(maxReplicas int32) {
	f.T.Helper()

	f.CreateCluster(f.NewCluster())
	f.Create(f.NewTemplate())
	f.Create(f.NewPool(maxReplicas))
}

// CreateCluster creates a HypervisorCluster, and deletes it when the test ends.
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
		f.T.Fatalf("get Secret %s: %v", name, err)
	}

	secret.Data[key] = []byte(value)
	if err := f.Client.Update(f.T.Context(), &secret); err != nil {
		f.T.Fatalf("update Secret %s: %v", name, err)
	}
}

// deleteCluster deletes a HypervisorCluster without its finalizers. Clusters have no namespace, so the
// deletion of the fleet's namespace does not delete them.
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

// Start runs an operator until Stop is called or the test ends.
func (f *Fleet) Start() {
	f.T.Helper()

	ctx, cancel := context.WithCancel(context.Background())

	mgr, routes, err := f.newManager(ctx)
	if err != nil {
		cancel()
		f.T.Fatalf("set up operator: %v", err)
	}

	run := &operatorRun{cancel: cancel, done: make(chan error, 1)}
	go func() { run.done <- mgr.Start(ctx) }()

	f.Front.Serve(routes)
	f.mu.Lock()
	f.operator = run
	f.mu.Unlock()
	f.T.Cleanup(f.Stop)
}

// Stop stops the operator, and waits until it has ended. It does nothing if no operator runs.
func (f *Fleet) Stop() {
	f.mu.Lock()
	run := f.operator
	f.operator = nil
	f.mu.Unlock()

	if run == nil {
		return
	}

	f.Front.Serve(nil)
	run.cancel()

	if err := <-run.done; err != nil && !errors.Is(err, context.Canceled) {
		f.T.Errorf("operator ended: %v", err)
	}
}

func (f *Fleet) newManager(ctx context.Context) (ctrl.Manager, http.Handler, error) {
	logger := f.newLogger()
	mgr, err := f.newScopedManager(ctx, "hyperfleet-runners", logger)
	if err != nil {
		return nil, nil, err
	}

	egress, err := operator.NewEgressPolicy(f.Runners)
	if err != nil {
		return nil, nil, err
	}

	f.Registry = prometheus.NewRegistry()
	area := &runners.Area{
		Config: f.Runners, Namespace: f.Namespace, Egress: egress,
		Settings: vmspec.Settings{
			OperatorUID: f.OperatorUID, GuestURL: f.Front.URL, ReportKey: f.ReportKey,
			TrustDomain: f.TrustDomain, HasDevIDAuthority: f.DevID.CertFile != "",
		},
		Identity:     f.Identity,
		DevID:        f.DevID,
		Hypervisors:  f.Hypervisors,
		Platforms:    operator.Platforms(),
		Transports:   runners.Transports{PlatformNetwork: f.PlatformNetwork},
		Registry:     f.Registry,
		Clock:        f.Clock,
		Log:          logger,
		MaxBodyBytes: 1 << 20,
		WebhookURL:   f.Front.URL,
	}

	routes, err := area.Setup(ctx, mgr)
	if err != nil {
		return nil, nil, fmt.Errorf("set up area: %w", err)
	}

	if f.Networking {
		if err := f.addNetworking(ctx, mgr, logger); err != nil {
			return nil, nil, fmt.Errorf("set up networking: %w", err)
		}
	}

	return mgr, routes, nil
}

// addNetworking adds the networking area to a manager, as a second manager that the first one runs.
func (f *Fleet) addNetworking(ctx context.Context, parent ctrl.Manager, logger *slog.Logger) error {
	mgr, err := f.newScopedManager(ctx, "hyperfleet-networking", logger)
	if err != nil {
		return err
	}

	if err := parent.Add(mgr); err != nil {
		return fmt.Errorf("add networking manager: %w", err)
	}

	area := &networking.Area{
		Config: config.Default().Networking, Registry: f.Registry, Clock: f.Clock, Log: logger,
		OperatorUID: f.OperatorUID,
		Secret: func(context.Context, v1alpha1.SecretKeySelector, credential.Destination) (string, error) {
			return "", errNoSecret
		},
	}

	return area.Setup(ctx, mgr)
}

// errNoSecret is the error of reading a DNS credential. Fleets have none, because they do not register
// machines in DNS.
var errNoSecret = errors.New("a fleet has no Secret for DNS")

func (f *Fleet) newLogger() *slog.Logger {
	if f.Log != nil {
		return log.New(f.Log, log.Options{Level: slog.LevelDebug})
	}

	return log.New(&testWriter{t: f.T}, log.Options{Level: slog.LevelInfo})
}

func withoutRateLimit(cfg *rest.Config) *rest.Config {
	out := rest.CopyConfig(cfg)
	out.QPS = -1

	return out
}

// Front is an HTTP server with a fixed address for CI platforms and machines. It forwards requests to the
// operator that runs.
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

// Serve sets the handler of the operator that runs. If it is nil, requests get status 503.
func (f *Front) Serve(handler http.Handler) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.handler = handler
}

// ServeHTTP forwards a request to the operator that runs.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	handler := f.handler
	f.mu.Unlock()

	if handler == nil {
		http.Error(w, "no operator is running", http.StatusServiceUnavailable)

		return
	}

	handler.ServeHTTP(w, r)
}

// testWriter writes the operator's log to the test's log. It drops lines after the test has ended.
type testWriter struct {
	t        testing.TB
	mu       sync.Mutex
	hasEnded bool
	once     sync.Once
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.once.Do(func() {
		w.t.Cleanup(func() {
			w.mu.Lock()
			defer w.mu.Unlock()

			w.hasEnded = true
		})
	})
	w.mu.Lock()
	defer w.mu.Unlock()

	if !w.hasEnded {
		w.t.Log(strings.TrimSpace(string(p)))
	}

	return len(p), nil
}
