// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/lease"
)

// cleanupTimeout bounds what a test tidies up after its own context has ended.
const cleanupTimeout = 30 * time.Second

// Option changes what is started.
type Option func(*options)

type options struct {
	paths     []string
	manager   bool
	addScheme []func(*runtime.Scheme) error
	// uses is the file that says what the program's tests have accounts do.
	uses, program, account string
}

// WithCRDs applies the CRDs, and any other objects, in the YAML files at the paths:
// files or folders, seen from the test's own folder.
func WithCRDs(paths ...string) Option {
	return func(o *options) { o.paths = append(o.paths, paths...) }
}

// WithControllerManager also runs kube-controller-manager: garbage collection,
// namespace deletion and default service accounts.
func WithControllerManager() Option {
	return func(o *options) { o.manager = true }
}

// WithScheme teaches the environment's clients more kinds, beside Kubernetes' own and
// CustomResourceDefinition.
func WithScheme(add ...func(*runtime.Scheme) error) Option {
	return func(o *options) { o.addScheme = append(o.addScheme, add...) }
}

// Env is a running API server.
type Env struct {
	// Config is that of an administrator.
	Config *rest.Config
	// Client is an administrator's client without a cache.
	Client client.Client
	// Scheme holds the kinds that the clients know.
	Scheme *runtime.Scheme

	cluster *kubeproc.Cluster
	// uses are what areas do; account is that of the area that Manage runs.
	uses    *uses
	account string
	// lease is what the cluster is held by, if it is a run's; else dir is where it runs.
	lease *lease.Lease
	dir   string
}

// Lease is what a run of tests tells of a control plane that it hands out.
type Lease struct {
	// Dir holds its keys, Host is the API server's URL.
	Dir, Host string
}

// The kind of server that a lease of a control plane asks for, and its option.
const (
	LeaseKind         = "control plane"
	LeaseWithManagers = "kube-controller-manager"
)

// Start gives one test an API server with nothing in it, until the test's end. It fails
// the test, and does not skip it, when the programs are missing.
func Start(t testing.TB, opts ...Option) *Env {
	t.Helper()

	env, err := start(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := env.checkUses(opts); err != nil && !t.Failed() {
			t.Error(err)
		}

		if err := env.stop(); err != nil {
			t.Error(err)
		}
	})

	return env
}

// Main hands an API server with nothing in it to use, runs the tests, gives the server up
// and exits with the tests' code.
func Main(m *testing.M, use func(*Env), opts ...Option) {
	os.Exit(Run(m, use, opts...))
}

// Run is Main that returns the exit code, for a TestMain with more to do.
func Run(m *testing.M, use func(*Env), opts ...Option) int {
	env, err := start(context.Background(), opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	use(env)

	code := m.Run()

	if code == 0 {
		if err := env.checkUses(opts); err != nil {
			fmt.Fprintln(os.Stderr, err)

			code = 1
		}
	}

	if err := env.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	return code
}

func start(ctx context.Context, opts []Option) (*Env, error) {
	chosen := &options{}
	for _, opt := range opts {
		opt(chosen)
	}

	env := &Env{Scheme: runtime.NewScheme(), uses: &uses{seen: map[string]map[Use]bool{}}, account: chosen.account}

	if err := env.fill(ctx, chosen); err != nil {
		return nil, errors.Join(err, env.stop())
	}

	return env, nil
}

func (e *Env) fill(ctx context.Context, chosen *options) error {
	adders := append([]func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme,
	}, chosen.addScheme...)

	for _, add := range adders {
		if err := add(e.Scheme); err != nil {
			return fmt.Errorf("add kinds: %w", err)
		}
	}

	err := e.have(ctx, chosen)
	if err != nil {
		return err
	}

	if e.Config, err = e.cluster.AdminConfig(); err != nil {
		return err
	}

	if e.Client, err = client.New(e.Config, client.Options{Scheme: e.Scheme}); err != nil {
		return fmt.Errorf("make client: %w", err)
	}

	return kubeproc.Apply(ctx, e.Config, chosen.paths...)
}

// have gets a control plane: one of the run's, or its own where there is no run.
func (e *Env) have(ctx context.Context, chosen *options) error {
	var (
		ask   []string
		given Lease
		err   error
	)

	if chosen.manager {
		ask = append(ask, LeaseWithManagers)

		if _, err := exe.Tool("managers", "kube-controller-manager"); err != nil {
			return fmt.Errorf("get a test API server: %w", err)
		}
	}

	if e.lease, err = lease.Take(LeaseKind, &given, ask...); err != nil {
		return fmt.Errorf("get a test API server: %w", err)
	}

	if e.lease != nil {
		e.cluster, err = kubeproc.Attach(given.Dir, given.Host)

		return err
	}

	if e.dir, err = os.MkdirTemp("", "hyperfleet-kube-"); err != nil {
		return fmt.Errorf("start test API server: %w", err)
	}

	e.cluster, err = kubeproc.Start(ctx, kubeproc.Options{Dir: e.dir, ControllerManager: chosen.manager})

	return err
}

func (e *Env) stop() error {
	var err error
	if e.cluster != nil {
		err = e.cluster.Stop()
	}

	return errors.Join(err, e.lease.Release(), os.RemoveAll(e.dir))
}

// Namespace makes a namespace for one test and deletes it at the test's end. Without
// a controller manager the namespace stays in Terminating with what is in it.
func (e *Env) Namespace(t testing.TB) string {
	t.Helper()

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
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

// Create makes an object.
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

// ServiceAccount returns the configuration of a client that is the given service
// account, made with its namespace if it is not there. It may do what RBAC says.
func (e *Env) ServiceAccount(t testing.TB, namespace, name string) *rest.Config {
	t.Helper()

	config, err := e.cluster.ServiceAccountConfig(t.Context(), namespace, name)
	if err != nil {
		t.Fatal(err)
	}

	return config
}

// User returns the configuration of a client that is the given user in the given
// groups. It may do what RBAC says.
func (e *Env) User(t testing.TB, name string, groups ...string) *rest.Config {
	t.Helper()

	config, err := e.cluster.UserConfig(name, groups...)
	if err != nil {
		t.Fatal(err)
	}

	return config
}

// Kubeconfig writes a client's configuration to a file of the test, for programs
// that read KUBECONFIG, and returns its path.
func (e *Env) Kubeconfig(t testing.TB, config *rest.Config) string {
	t.Helper()

	path := t.TempDir() + "/kubeconfig"
	if err := kubeproc.WriteKubeconfig(path, config); err != nil {
		t.Fatal(err)
	}

	return path
}
