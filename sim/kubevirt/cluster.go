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
	// retryAfter is the delay before the first retry of a failed reconcile, and before the next reconcile of
	// a machine that waits, in the time of the cluster's clock.
	retryAfter = 50 * time.Millisecond
	// callTimeout bounds one reconcile. It only limits how long the cluster waits for a broken API server.
	callTimeout = time.Minute
	workers     = 4
)

// Cluster is a simulated KubeVirt. Its methods are safe for concurrent use.
type Cluster struct {
	options Options
	client  client.Client
	clock   clock.WithTicker
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName]
	cache   cache.Cache
	ctx     context.Context //nolint:containedctx // it ends when the cluster is closed
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	// scheduleMu is held while a node is chosen for a machine.
	scheduleMu sync.Mutex

	mu sync.Mutex
	// dueTimes holds the end times of the delays that have started.
	dueTimes map[delayKey]time.Time
	// guests holds the running guests by the UID of their VirtualMachineInstance.
	guests map[types.UID]*guestRun
	// startCounts counts the created instances by the UID of their VirtualMachine.
	startCounts map[types.UID]int
	// reviewedGenerations holds the generation of each VirtualMachine that Options.Webhook reviewed last.
	reviewedGenerations map[types.UID]int64
	// endPhases are the final phases of instances that their guest or a fault has ended.
	endPhases  map[types.UID]virtv1.VirtualMachineInstancePhase
	lostNodes  map[string]bool
	violations []Violation
	problems   []error
	nextIP     uint32
	delays     Delays
	consoles   map[types.NamespacedName]*console
}

// delayKey identifies a delay by the object that waits and the name of the delay.
type delayKey struct {
	uid  types.UID
	name string
}

// NewScheme returns a scheme with the kinds that the cluster uses.
func NewScheme() (*runtime.Scheme, error) {
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

// newRESTMapper returns a mapper for the kinds of the scheme that does not call the API server.
func newRESTMapper(scheme *runtime.Scheme) meta.RESTMapper {
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

// Start starts a cluster on the API server, and creates its nodes. The API server must have KubeVirt's
// CRDs (sim/kubevirt/crds).
func Start(config *rest.Config, options Options) (*Cluster, error) {
	if len(options.Namespaces) == 0 {
		return nil, errors.New("start KubeVirt: Options.Namespaces is empty")
	}

	setDefaults(&options)

	c, err := newCluster(config, options)
	if err != nil {
		return nil, fmt.Errorf("start KubeVirt: %w", err)
	}

	if err := c.createNodes(c.ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}

	if err := c.startWorkers(); err != nil {
		return nil, errors.Join(err, c.Close())
	}

	return c, nil
}

func newCluster(config *rest.Config, options Options) (*Cluster, error) {
	scheme, err := NewScheme()
	if err != nil {
		return nil, err
	}

	config = rest.CopyConfig(config)
	config.QPS = -1
	config.Timeout = 0

	kinds := newRESTMapper(scheme)

	api, err := client.New(config, client.Options{Scheme: scheme, Mapper: kinds})
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}

	namespaces := map[string]cache.Config{}
	for _, n := range options.Namespaces {
		namespaces[n] = cache.Config{}
	}

	informers, err := cache.New(config, cache.Options{Scheme: scheme, Mapper: kinds, DefaultNamespaces: namespaces})
	if err != nil {
		return nil, fmt.Errorf("create cache: %w", err)
	}

	ctx, cancel := context.WithCancel(context.Background())

	return &Cluster{
		options: options, client: api, clock: options.Clock, cache: informers, ctx: ctx, cancel: cancel, delays: options.Delays,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryAfter, time.Second),
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Clock: options.Clock}),
		dueTimes: map[delayKey]time.Time{}, guests: map[types.UID]*guestRun{}, startCounts: map[types.UID]int{},
		reviewedGenerations: map[types.UID]int64{},
		endPhases:           map[types.UID]virtv1.VirtualMachineInstancePhase{}, lostNodes: map[string]bool{},
		consoles: map[types.NamespacedName]*console{},
	}, nil
}

// startWorkers starts the watches and the workers. It returns when the cache is in sync.
func (c *Cluster) startWorkers() error {
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
		informer, err := c.cache.GetInformer(c.ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}

		if _, err := informer.AddEventHandler(c.newEventHandler(name)); err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
	}

	c.wg.Go(func() { _ = c.cache.Start(c.ctx) })

	for range workers {
		c.wg.Go(c.runWorker)
	}

	synced, cancel := context.WithTimeout(c.ctx, callTimeout)
	defer cancel()

	if !c.cache.WaitForCacheSync(synced) {
		return errors.New("watch machines: the API server does not serve KubeVirt's CRDs: install sim/kubevirt/crds")
	}

	return nil
}

func (c *Cluster) newEventHandler(name func(client.Object) string) toolscache.ResourceEventHandler {
	add := func(obj any) {
		if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}

		if o, ok := obj.(client.Object); ok {
			c.queue.Add(types.NamespacedName{Namespace: o.GetNamespace(), Name: name(o)})
		}
	}

	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, updated any) { add(updated) }, DeleteFunc: add,
	}
}

func (c *Cluster) runWorker() {
	for {
		key, isShutDown := c.queue.Get()
		if isShutDown {
			return
		}

		err := c.reconcile(key)

		switch {
		case err == nil:
			c.queue.Forget(key)
		case c.ctx.Err() != nil:
		default:
			if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
				c.recordProblem(fmt.Errorf("%s: %w", key, err))
			}

			c.queue.AddRateLimited(key)
		}

		c.queue.Done(key)
	}
}

// reconcile takes the next steps for the VirtualMachine, the VirtualMachineInstance and the migration of
// one name.
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
		if err := c.reconcileInstance(ctx, vm, instance); err != nil {
			return err
		}

		if err := c.reconcileMigrations(ctx, instance); err != nil {
			return err
		}
	}

	if vm == nil {
		return nil
	}

	return c.reconcileVM(ctx, vm)
}

// get reads an object. It returns nil if the object does not exist.
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

// hasElapsed returns true if a delay of an object is over. The first call starts the delay. While the
// delay lasts, hasElapsed enqueues the key for the time at which the delay ends.
func (c *Cluster) hasElapsed(key types.NamespacedName, uid types.UID, name string, delay time.Duration) bool {
	if delay <= 0 {
		return true
	}

	c.mu.Lock()
	id := delayKey{uid, name}

	due, ok := c.dueTimes[id]
	if !ok {
		due = c.clock.Now().Add(delay)
		c.dueTimes[id] = due
	}

	c.mu.Unlock()

	remaining := due.Sub(c.clock.Now())
	if remaining <= 0 {
		return true
	}

	c.queue.AddAfter(key, remaining)

	return false
}

func (c *Cluster) recordProblem(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.problems = append(c.problems, err)
}

func (c *Cluster) recordViolation(object client.Object, kind, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	v := Violation{Object: kind + " " + client.ObjectKeyFromObject(object).String(), Message: message}
	if !slices.Contains(c.violations, v) {
		c.violations = append(c.violations, v)
	}
}

// Violations returns the objects of clients that KubeVirt would have rejected.
func (c *Cluster) Violations() []Violation {
	c.mu.Lock()
	defer c.mu.Unlock()

	return slices.Clone(c.violations)
}

// Problems returns the errors of the cluster itself. A test should fail if there is one.
func (c *Cluster) Problems() []error {
	c.mu.Lock()
	defer c.mu.Unlock()

	return slices.Clone(c.problems)
}

// SetDelays replaces the delays. Delays that have already started keep their end times.
func (c *Cluster) SetDelays(d Delays) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.delays = d
}

func (c *Cluster) currentDelays() Delays {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.delays
}

// StartCount returns how often a machine was started, which is the number of instances created for it.
func (c *Cluster) StartCount(vm types.UID) int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.startCounts[vm]
}

// Close stops the cluster and its guests, and deletes its nodes. It does not delete other objects.
func (c *Cluster) Close() error {
	c.cancel()
	c.queue.ShutDown()
	c.stopGuests()
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
