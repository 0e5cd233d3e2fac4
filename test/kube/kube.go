// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/lease"
)

// cleanupTimeout limits the cleanup of a test after the test's context has ended.
const cleanupTimeout = 30 * time.Second

// Option configures an Env.
type Option func(*options)

type options struct {
	paths                 []string
	withOwnCRDs           bool
	withControllerManager bool
	addScheme             []func(*runtime.Scheme) error
	setups                []func(context.Context, *rest.Config) error
	// comparesUses and account are set by WithUses.
	comparesUses bool
	account      string
}

// ForArea applies the CRDs of the operator, and compares the API calls of the area's account with those that
// are declared (WithUses).
func ForArea(area string) Option {
	return func(o *options) {
		o.withOwnCRDs = true
		WithUses("hyperfleet-" + area)(o)
	}
}

// WithCRDs applies the CRDs and other objects in the YAML files at the paths. A path is a file or
// directory, and relative to the directory of the test's package.
func WithCRDs(paths ...string) Option {
	return func(o *options) { o.paths = append(o.paths, paths...) }
}

// WithControllerManager also runs kube-controller-manager for garbage collection, namespace deletion,
// default service accounts and quotas.
func WithControllerManager() Option {
	return func(o *options) { o.withControllerManager = true }
}

// WithScheme adds kinds to the scheme of the environment's clients. The scheme always contains Kubernetes'
// own kinds, CustomResourceDefinition and the kinds of the operator.
func WithScheme(add ...func(*runtime.Scheme) error) Option {
	return func(o *options) { o.addScheme = append(o.addScheme, add...) }
}

// WithSetup calls functions, for example to install CRDs, before the tests run.
func WithSetup(setups ...func(context.Context, *rest.Config) error) Option {
	return func(o *options) { o.setups = append(o.setups, setups...) }
}

// Env is a running API server.
type Env struct {
	// Config is an administrator's client configuration.
	Config *rest.Config
	// Client is an administrator's client without a cache.
	Client client.Client
	// Scheme is the scheme of the clients.
	Scheme *runtime.Scheme

	cluster *kubeproc.Cluster
	// uses records the API calls of accounts. account is the account of the manager that StartManager starts.
	uses    *useRecorder
	account string
	// lease is the lease of the cluster. If it is nil, the cluster belongs to this Env and runs in dir.
	lease *lease.Lease
	dir   string
}

// Lease describes a control plane that a test run leases to a test program.
type Lease struct {
	// Dir is the directory with the control plane's keys, and Host is the URL of the API server.
	Dir, Host string
}

// OwnCRDs is the directory of the operator's CRDs in the module.
const OwnCRDs = "deploy/crds"

// LeaseKind is the kind of server in the request for a control plane. The others are its options.
const (
	LeaseKind         = "control plane"
	LeaseWithManagers = "kube-controller-manager"
	LeaseWithOwnCRDs  = "own CRDs"
)

// Start starts an empty API server until the test ends. If the programs are missing, it fails the test and
// does not skip it.
func Start(t testing.TB, opts ...Option) *Env {
	t.Helper()

	var env *Env
	if err := start(context.Background(), &env, opts); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := env.compareUses(opts); err != nil && !t.Failed() {
			t.Error(err)
		}

		if err := env.stop(); err != nil {
			t.Error(err)
		}
	})

	return env
}

// Main starts an empty API server and sets env to it, runs the tests, stops the server, and exits with the
// tests' exit code. Logs of controller-runtime are discarded, unless the caller has set its logger.
func Main(m *testing.M, env **Env, opts ...Option) {
	os.Exit(Run(m, env, opts...))
}

// Run does what Main does, but returns the exit code, for a TestMain with further steps.
func Run(m *testing.M, env **Env, opts ...Option) int {
	if err := start(context.Background(), env, opts); err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	code := m.Run()

	if code == 0 {
		if err := (*env).compareUses(opts); err != nil {
			fmt.Fprintln(os.Stderr, err)

			code = 1
		}
	}

	if err := (*env).stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	return code
}

// start starts an API server, and sets env before it calls the functions of WithSetup, which may use it.
func start(ctx context.Context, env **Env, opts []Option) error {
	settings := &options{}
	for _, opt := range opts {
		opt(settings)
	}

	ctrl.SetLogger(logr.Discard())

	*env = &Env{Scheme: runtime.NewScheme(), uses: &useRecorder{calls: map[string]map[Use]bool{}}, account: settings.account}

	if err := (*env).setUp(ctx, settings); err != nil {
		return errors.Join(err, (*env).stop())
	}

	return nil
}

func (e *Env) setUp(ctx context.Context, settings *options) error {
	adders := append([]func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, hfv1.AddToScheme, infrav1.AddToScheme, bridgev1.AddToScheme,
	}, settings.addScheme...)

	for _, add := range adders {
		if err := add(e.Scheme); err != nil {
			return fmt.Errorf("add kinds to scheme: %w", err)
		}
	}

	ownCRDs, err := settings.takeOwnCRDs()
	if err != nil {
		return err
	}

	if err := e.acquireCluster(ctx, settings); err != nil {
		return err
	}

	if settings.withOwnCRDs && e.lease == nil {
		settings.paths = append([]string{ownCRDs}, settings.paths...)
	}

	if e.Config, err = e.cluster.AdminConfig(); err != nil {
		return err
	}

	if e.Client, err = client.New(e.Config, client.Options{Scheme: e.Scheme}); err != nil {
		return fmt.Errorf("create client: %w", err)
	}

	if err := kubeproc.Apply(ctx, e.Config, settings.paths...); err != nil {
		return err
	}

	for _, setup := range settings.setups {
		if err := setup(ctx, e.Config); err != nil {
			return fmt.Errorf("set up test API server: %w", err)
		}
	}

	return nil
}

// takeOwnCRDs returns the path of the operator's CRDs, and removes it from the paths to apply, because the control planes
// of a test run already have these CRDs.
func (o *options) takeOwnCRDs() (string, error) {
	root, err := procrun.FindModuleRoot()
	if err != nil {
		return "", err
	}

	own := filepath.Join(root, OwnCRDs)

	o.paths = slices.DeleteFunc(o.paths, func(path string) bool {
		absolute, err := filepath.Abs(path)
		isOwn := err == nil && absolute == own
		o.withOwnCRDs = o.withOwnCRDs || isOwn

		return isOwn
	})

	return own, nil
}

// acquireCluster leases a control plane from the test run. If there is no test run, it starts a control
// plane.
func (e *Env) acquireCluster(ctx context.Context, settings *options) error {
	var (
		leaseOptions []string
		leased       Lease
		err          error
	)

	if settings.withControllerManager {
		leaseOptions = append(leaseOptions, LeaseWithManagers)

		if _, err := exe.FindTool("managers", "kube-controller-manager"); err != nil {
			return fmt.Errorf("get a test API server: %w", err)
		}
	}

	if settings.withOwnCRDs {
		leaseOptions = append(leaseOptions, LeaseWithOwnCRDs)
	}

	if e.lease, err = lease.Acquire(LeaseKind, &leased, leaseOptions...); err != nil {
		return fmt.Errorf("get a test API server: %w", err)
	}

	if e.lease != nil {
		e.cluster, err = kubeproc.Attach(leased.Dir, leased.Host)

		return err
	}

	if e.dir, err = os.MkdirTemp("", "hyperfleet-kube-"); err != nil {
		return fmt.Errorf("start test API server: %w", err)
	}

	e.cluster, err = kubeproc.Start(ctx, kubeproc.Options{Dir: e.dir, ControllerManager: settings.withControllerManager})

	return err
}

func (e *Env) stop() error {
	var err error
	if e.cluster != nil {
		err = e.cluster.Stop()
	}

	return errors.Join(err, e.lease.Release(), os.RemoveAll(e.dir))
}

// Namespace creates a namespace for one test, deletes it when the test ends, and returns its name. Without a
// controller manager, the namespace stays in phase Terminating, and its objects stay.
func (e *Env) Namespace(t testing.TB) string {
	t.Helper()

	return e.NamespaceWithName(t, "")
}

// NamespaceWithName is Namespace with a given name. If the name is empty, the API server chooses one.
func (e *Env) NamespaceWithName(t testing.TB, name string) string {
	t.Helper()

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, GenerateName: "test-"}}
	if err := e.Client.Create(t.Context(), namespace); err != nil {
		t.Fatalf("create namespace: %v", err)
	}

	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()

		if err := e.Client.Delete(ctx, namespace); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("delete namespace: %v", err)
		}
	})

	return namespace.Name
}

// Create creates an object.
func (e *Env) Create(t testing.TB, obj client.Object) {
	t.Helper()

	if err := e.Client.Create(t.Context(), obj); err != nil {
		t.Fatalf("create %s: %v", obj.GetName(), err)
	}
}

// Apply applies the objects in the YAML files at the paths.
func (e *Env) Apply(t testing.TB, paths ...string) {
	t.Helper()

	if err := kubeproc.Apply(t.Context(), e.Config, paths...); err != nil {
		t.Fatal(err)
	}
}

// ServiceAccount returns the client configuration of a service account with the permissions that RBAC gives
// the account. It creates the service account and its namespace if they do not exist.
func (e *Env) ServiceAccount(t testing.TB, namespace, name string) *rest.Config {
	t.Helper()

	config, err := e.cluster.ServiceAccountConfig(t.Context(), namespace, name)
	if err != nil {
		t.Fatal(err)
	}

	return config
}

// User returns the client configuration of a user in groups, with the permissions that RBAC gives them.
func (e *Env) User(t testing.TB, name string, groups ...string) *rest.Config {
	t.Helper()

	config, err := e.cluster.UserConfig(name, groups...)
	if err != nil {
		t.Fatal(err)
	}

	return config
}

// Kubeconfig writes a client configuration to a kubeconfig file, and returns the path of the file. The file
// is deleted when the test ends.
func (e *Env) Kubeconfig(t testing.TB, config *rest.Config) string {
	t.Helper()

	path := t.TempDir() + "/kubeconfig"
	if err := kubeproc.WriteKubeconfig(path, config); err != nil {
		t.Fatal(err)
	}

	return path
}
