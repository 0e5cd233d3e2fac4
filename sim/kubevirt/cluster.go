// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	virtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// retryAfter is how soon something that failed or has to wait is looked at again, in
	// the cluster's time.
	retryAfter = 50 * time.Millisecond
	// callTimeout bounds what is done to one machine at once. It decides nothing but how
	// long a broken API server is waited for.
	callTimeout = time.Minute
	workers     = 4
)

// Cluster is a simulated KubeVirt. Its methods are safe for concurrent use.
type Cluster struct {
	options Options
	client  client.Client
	clock   clock.WithTicker
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName]
	view    cache.Cache
	ctx     context.Context //nolint:containedctx // the cluster's life
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	// scheduling is held while a machine is given a node.
	scheduling sync.Mutex

	mu sync.Mutex
	// due holds when a delay that has begun is over.
	due map[dueKey]time.Time
	// guests by the uid of their VirtualMachineInstance.
	guests map[types.UID]*guestRun
	// starts counts the instances made, by the uid of their VirtualMachine.
	starts map[types.UID]int
	// judged is the generation of a VirtualMachine that Options.Judge was asked about last.
	judged map[types.UID]int64
	// ended are instances whose end was decided: by their guest or by a fault.
	ended      map[types.UID]virtv1.VirtualMachineInstancePhase
	lost       map[string]bool
	violations []Violation
	problems   []error
	nextIP     uint32
	delays     Delays
	consoles   map[types.NamespacedName]*console
}

// dueKey names a delay: what waits, and for what.
type dueKey struct {
	uid  types.UID
	what string
}

// Scheme knows the kinds that the cluster plays with.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, virtv1.AddToScheme, cdiv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("add kinds: %w", err)
		}
	}

	return scheme, nil
}

// mapper knows the kinds without asking the API server.
func mapper(scheme *runtime.Scheme) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for gvk := range scheme.AllKnownTypes() {
		scope := meta.RESTScopeNamespace
		if gvk.Kind == "Node" || gvk.Kind == "Namespace" {
			scope = meta.RESTScopeRoot
		}

		m.Add(gvk, scope)
	}

	return m
}

// Start makes a cluster on the API server and starts it. The API server must have the
// kinds (sim/kubevirt/crds).
func Start(config *rest.Config, options Options) (*Cluster, error) {
	if len(options.Namespaces) == 0 {
		return nil, errors.New("start KubeVirt: name at least one namespace")
	}

	setDefaults(&options)

	c, err := build(config, options)
	if err != nil {
		return nil, fmt.Errorf("start KubeVirt: %w", err)
	}

	if err := c.makeNodes(c.ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}

	if err := c.run(); err != nil {
		return nil, errors.Join(err, c.Close())
	}

	return c, nil
}

func build(config *rest.Config, options Options) (*Cluster, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}

	config = rest.CopyConfig(config)
	config.QPS = -1
	config.Timeout = 0

	kinds := mapper(scheme)

	api, err := client.New(config, client.Options{Scheme: scheme, Mapper: kinds})
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}

	namespaces := map[string]cache.Config{}
	for _, n := range options.Namespaces {
		namespaces[n] = cache.Config{}
	}

	view, err := cache.New(config, cache.Options{Scheme: scheme, Mapper: kinds, DefaultNamespaces: namespaces})
	if err != nil {
		return nil, fmt.Errorf("make watches: %w", err)
	}

	ctx, cancel := context.WithCancel(context.Background())

	return &Cluster{
		options: options, client: api, clock: options.Clock, view: view, ctx: ctx, cancel: cancel, delays: options.Delays,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryAfter, time.Second),
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Clock: options.Clock}),
		due: map[dueKey]time.Time{}, guests: map[types.UID]*guestRun{}, starts: map[types.UID]int{},
		judged: map[types.UID]int64{},
		ended:  map[types.UID]virtv1.VirtualMachineInstancePhase{}, lost: map[string]bool{},
		consoles: map[types.NamespacedName]*console{},
	}, nil
}

// run starts the watches and the workers.
func (c *Cluster) run() error {
	watched := map[client.Object]func(client.Object) string{
		&virtv1.VirtualMachine{}:         client.Object.GetName,
		&virtv1.VirtualMachineInstance{}: client.Object.GetName,
		&virtv1.VirtualMachineInstanceMigration{}: func(o client.Object) string {
			if m, ok := o.(*virtv1.VirtualMachineInstanceMigration); ok {
				return m.Spec.VMIName
			}

			return ""
		},
	}

	for kind, name := range watched {
		informer, err := c.view.GetInformer(c.ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}

		if _, err := informer.AddEventHandler(c.enqueue(name)); err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
	}

	c.wg.Go(func() { _ = c.view.Start(c.ctx) })

	for range workers {
		c.wg.Go(c.work)
	}

	synced, cancel := context.WithTimeout(c.ctx, callTimeout)
	defer cancel()

	if !c.view.WaitForCacheSync(synced) {
		return errors.New("watch machines: the API server does not serve KubeVirt's kinds: install sim/kubevirt/crds")
	}

	return nil
}

func (c *Cluster) enqueue(name func(client.Object) string) toolscache.ResourceEventHandler {
	add := func(obj any) {
		if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}

		if o, ok := obj.(client.Object); ok {
			c.queue.Add(types.NamespacedName{Namespace: o.GetNamespace(), Name: name(o)})
		}
	}

	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, now any) { add(now) }, DeleteFunc: add,
	}
}

func (c *Cluster) work() {
	for {
		key, over := c.queue.Get()
		if over {
			return
		}

		err := c.reconcile(key)

		switch {
		case err == nil:
			c.queue.Forget(key)
		case c.ctx.Err() != nil:
		default:
			if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
				c.problem(fmt.Errorf("%s: %w", key, err))
			}

			c.queue.AddRateLimited(key)
		}

		c.queue.Done(key)
	}
}

// reconcile takes a machine of that name as far as it can get now.
func (c *Cluster) reconcile(key types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(c.ctx, callTimeout)
	defer cancel()

	vm, err := get[virtv1.VirtualMachine](ctx, c, key)
	if err != nil {
		return err
	}

	instance, err := get[virtv1.VirtualMachineInstance](ctx, c, key)
	if err != nil {
		return err
	}

	if instance != nil {
		if err := c.instance(ctx, vm, instance); err != nil {
			return err
		}

		if err := c.migrate(ctx, instance); err != nil {
			return err
		}
	}

	if vm == nil {
		return nil
	}

	return c.machine(ctx, vm)
}

// get reads an object; nil is none.
func get[T any, P interface {
	*T
	client.Object
}](ctx context.Context, c *Cluster, key types.NamespacedName) (P, error) {
	obj := P(new(T))

	err := c.client.Get(ctx, key, obj)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}

	if err != nil {
		return nil, fmt.Errorf("get %T %s: %w", obj, key, err)
	}

	return obj, nil
}

// after tells whether a delay that begins with the first question is over, and has the
// key looked at again when it is.
func (c *Cluster) after(key types.NamespacedName, uid types.UID, what string, delay time.Duration) bool {
	if delay <= 0 {
		return true
	}

	c.mu.Lock()
	id := dueKey{uid, what}

	due, ok := c.due[id]
	if !ok {
		due = c.clock.Now().Add(delay)
		c.due[id] = due
	}

	c.mu.Unlock()

	left := due.Sub(c.clock.Now())
	if left <= 0 {
		return true
	}

	c.queue.AddAfter(key, left)

	return false
}

func (c *Cluster) problem(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.problems = append(c.problems, err)
}

func (c *Cluster) violate(object client.Object, kind, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	v := Violation{Object: kind + " " + client.ObjectKeyFromObject(object).String(), What: what}
	if !slices.Contains(c.violations, v) {
		c.violations = append(c.violations, v)
	}
}

// Violations are what clients did that KubeVirt does not take.
func (c *Cluster) Violations() []Violation {
	c.mu.Lock()
	defer c.mu.Unlock()

	return slices.Clone(c.violations)
}

// Problems are the errors that the cluster itself met.
func (c *Cluster) Problems() []error {
	c.mu.Lock()
	defer c.mu.Unlock()

	return slices.Clone(c.problems)
}

// SetDelays changes how long things take from now on.
func (c *Cluster) SetDelays(d Delays) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.delays = d
}

func (c *Cluster) wait() Delays {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.delays
}

// Starts is how often a machine was started: how many instances were made of it.
func (c *Cluster) Starts(vm types.UID) int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.starts[vm]
}

// Close stops the cluster and its guests, and removes its nodes. Objects stay.
func (c *Cluster) Close() error {
	c.cancel()
	c.queue.ShutDown()
	c.endGuests()
	c.wg.Wait()

	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()

	var problems []error

	for _, n := range c.options.Nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
		if err := c.client.Delete(ctx, node); err != nil && !apierrors.IsNotFound(err) {
			problems = append(problems, fmt.Errorf("delete node %s: %w", n.Name, err))
		}
	}

	return errors.Join(problems...)
}
