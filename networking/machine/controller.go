// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

const (
	// reconcileTimeout is the timeout of one reconcile.
	reconcileTimeout = time.Minute
	// requeueDelay is the delay before a machine is reconciled again while its VirtualMachine is being
	// deleted.
	requeueDelay = 5 * time.Second
)

// Reconciler reconciles KubevirtMachines.
type Reconciler struct {
	Client client.Client
	// APIReader reads from the API server, not from a cache.
	APIReader client.Reader
	Runner    *step.Reconciler
	Recorder  events.EventRecorder
	Addresses *pools.AddressRegistry
	Clock     clock.WithTicker
	// Concurrency is the number of machines that are reconciled at the same time.
	Concurrency int

	changed watch.Source
}

//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtmachines,verbs=get;list;watch;patch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtmachines/status,verbs=patch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtmachines/finalizers,verbs=update
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtnodepools,verbs=list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=dnsregistrations,verbs=get;list;watch
//+kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch;create;patch;delete
//+kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
//+kubebuilder:rbac:groups="",resources=secrets,verbs=create
//+kubebuilder:rbac:groups="",namespace=hyperfleet-system,resources=secrets,resourceNames=guest-kubeconfig,verbs=get
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("kubevirtmachine").
		For(&v1alpha1.KubevirtMachine{}).
		Watches(kubevirt.NewObject(kubevirt.VirtualMachineKind()), handler.EnqueueRequestsFromMapFunc(enqueueMachine)).
		Watches(kubevirt.NewObject(kubevirt.InstanceKind()), handler.EnqueueRequestsFromMapFunc(enqueueMachine)).
		Watches(&hfv1.DNSRegistration{},
			handler.EnqueueRequestsFromMapFunc(claimstatus.EnqueueForRegistration(hfv1.KindKubevirtMachine))).
		WatchesRawSource(r.Addresses.RebuildSource(r.Clock)).
		WatchesRawSource(&r.changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Concurrency, ReconciliationTimeout: reconcileTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller kubevirtmachine: %w", err)
	}

	return nil
}

// enqueueMachine enqueues the machine of a VirtualMachine or of its instance.
func enqueueMachine(_ context.Context, obj client.Object) []reconcile.Request {
	name := obj.GetLabels()[v1alpha1.LabelMachine]
	if name == "" {
		return nil
	}

	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: obj.GetNamespace(), Name: name}}}
}

// scope is the state of one reconcile of one machine.
type scope struct {
	*Reconciler

	machine *v1alpha1.KubevirtMachine
	// vm and instance are nil if they do not exist.
	vm, instance *unstructured.Unstructured
	// pool is the node pool of a machine that is being deleted. It is nil if the pool does not exist, and
	// for a machine that is not being deleted.
	pool *v1alpha1.KubevirtNodePool
	// network is set by ensureNetworkData.
	network networkSecret
}

func newPlan() step.Plan[*scope] {
	return step.Plan[*scope]{
		Finalizer:  v1alpha1.FinalizerKubevirtMachine,
		ReadyEvent: &step.ReadyEvent{Reason: "MachineReady", Message: "the machine runs"},
		Steps: []step.Step[*scope]{
			{Condition: v1alpha1.ConditionAddressesAllocated, Run: allocate}, // the addresses are in the status
			{Condition: v1alpha1.ConditionNetworkDataReady, Run: ensureNetworkData},
			{Condition: v1alpha1.ConditionVMCreated, Run: ensureVM},
			{Condition: v1alpha1.ConditionVMReady, Run: reportVM},
		},
		DeletionSteps: []step.Step[*scope]{
			{Condition: v1alpha1.ConditionNodeDrained, AppliesTo: shouldDrain, Run: drainNode},
			{Condition: v1alpha1.ConditionVMDeleted, Run: deleteVM},
			{Condition: v1alpha1.ConditionNodeDeleted, AppliesTo: shouldDeleteNode, Run: deleteNode},
			{Condition: v1alpha1.ConditionDNSRemoved, Run: waitForDNS},              // no DNS name resolves to the addresses
			{Condition: v1alpha1.ConditionAddressesReleased, Run: releaseAddresses}, // now another machine can get them
		},
	}
}

// Reconcile runs the steps of one machine.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var machine v1alpha1.KubevirtMachine

	err := r.Client.Get(ctx, req.NamespacedName, &machine)
	if apierrors.IsNotFound(err) {
		return r.releaseDeleted(ctx, req.NamespacedName)
	}

	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get machine: %w", err)
	}

	s := &scope{Reconciler: r, machine: &machine}
	if err := s.load(ctx); err != nil {
		return reconcile.Result{}, err
	}

	return step.Reconcile(ctx, r.Runner, &machine, newPlan(), s)
}

// load reads the machine's VirtualMachine, its instance, and the node pool if the machine is being deleted.
func (s *scope) load(ctx context.Context) error {
	var err error
	if s.vm, err = s.getObject(ctx, s.Client, kubevirt.NewObject(kubevirt.VirtualMachineKind())); err != nil {
		return err
	}

	if s.instance, err = s.getObject(ctx, s.Client, kubevirt.NewObject(kubevirt.InstanceKind())); err != nil {
		return err
	}

	return s.loadPool(ctx)
}

// getObject reads the object with the machine's name. It returns nil if there is no such object.
func (s *scope) getObject(
	ctx context.Context, from client.Reader, into *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	err := from.Get(ctx, client.ObjectKeyFromObject(s.machine), into)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // a missing object is not an error
	}

	if err != nil {
		return nil, fmt.Errorf("get %s: %w", into.GetKind(), err)
	}

	return into, nil
}

// releaseDeleted releases the addresses of a machine that no longer exists. Usually the finalizer
// has already released them. If somebody removed the finalizer by force, releaseDeleted waits until the
// VirtualMachine and its instance are deleted.
func (r *Reconciler) releaseDeleted(ctx context.Context, name types.NamespacedName) (reconcile.Result, error) {
	if err := r.restoreOrphan(ctx, name); err != nil {
		return reconcile.Result{}, err
	}

	owners := r.Addresses.OwnersWithPrefix(kubevirt.OwnerKeyPrefix(name.Namespace, name.Name))
	if len(owners) == 0 {
		return reconcile.Result{}, nil
	}

	for _, object := range []*unstructured.Unstructured{
		kubevirt.NewObject(kubevirt.VirtualMachineKind()), kubevirt.NewObject(kubevirt.InstanceKind()),
	} {
		err := r.APIReader.Get(ctx, name, object)
		if err == nil {
			return reconcile.Result{RequeueAfter: requeueDelay}, nil
		}

		if !apierrors.IsNotFound(err) {
			return reconcile.Result{}, fmt.Errorf("get %s of a deleted machine: %w", object.GetKind(), err)
		}
	}

	// The cache may not have a new machine with this name yet.
	var machine v1alpha1.KubevirtMachine
	if err := r.APIReader.Get(ctx, name, &machine); !apierrors.IsNotFound(err) {
		return reconcile.Result{RequeueAfter: requeueDelay}, client.IgnoreNotFound(err)
	}

	for _, owner := range owners {
		r.Addresses.Release(owner)
	}

	return reconcile.Result{}, nil
}
