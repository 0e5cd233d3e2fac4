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
	"github.com/hyperfleet/hyperfleet/kit/trigger"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

const (
	// passTimeout bounds one pass over one machine.
	passTimeout = time.Minute
	// lookAgain is how soon a VirtualMachine that is going is looked at without an event.
	lookAgain = 5 * time.Second
)

// Reconciler reconciles KubevirtMachines.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server itself.
	Live      client.Reader
	Runner    *step.Runner
	Recorder  events.EventRecorder
	Addresses *pools.AddressRegistry
	Clock     clock.WithTicker
	// Concurrency is how many machines are worked on at a time.
	Concurrency int

	changed trigger.Source
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
		Watches(kubevirt.New(kubevirt.VirtualMachineKind()), handler.EnqueueRequestsFromMapFunc(machineOf)).
		Watches(kubevirt.New(kubevirt.InstanceKind()), handler.EnqueueRequestsFromMapFunc(machineOf)).
		Watches(&hfv1.DNSRegistration{},
			handler.EnqueueRequestsFromMapFunc(claimstatus.OfRegistration(hfv1.KindKubevirtMachine))).
		WatchesRawSource(r.Addresses.Gate(r.Clock)).
		WatchesRawSource(&r.changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Concurrency, ReconciliationTimeout: passTimeout}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller kubevirtmachine: %w", err)
	}

	return nil
}

// machineOf is the machine of a VirtualMachine or of its instance.
func machineOf(_ context.Context, obj client.Object) []reconcile.Request {
	name := obj.GetLabels()[v1alpha1.LabelMachine]
	if name == "" {
		return nil
	}

	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: obj.GetNamespace(), Name: name}}}
}

// scope is one pass over one machine.
type scope struct {
	*Reconciler

	machine *v1alpha1.KubevirtMachine
	// vm and instance are nil where there is none.
	vm, instance *unstructured.Unstructured
	// pool of a machine that is being deleted; nil where there is none.
	pool *v1alpha1.KubevirtNodePool
	// network is filled by networkData.
	network networkSecret
}

func plan() step.Plan[*scope] {
	return step.Plan[*scope]{
		Finalizer: v1alpha1.FinalizerKubevirtMachine,
		Ready:     &step.ReadyEvent{Reason: "MachineReady", Message: "the machine runs"},
		Steps: []step.Step[*scope]{
			{Condition: v1alpha1.ConditionAddressesAllocated, Run: allocate}, // addresses are in the status
			{Condition: v1alpha1.ConditionNetworkDataReady, Run: networkData},
			{Condition: v1alpha1.ConditionVMCreated, Run: create},
			{Condition: v1alpha1.ConditionVMReady, Run: follow},
		},
		Deletion: []step.Step[*scope]{
			{Condition: v1alpha1.ConditionNodeDrained, When: drains, Run: drained},
			{Condition: v1alpha1.ConditionVMDeleted, Run: destroy},
			{Condition: v1alpha1.ConditionNodeDeleted, When: leavesNode, Run: nodeGone},
			{Condition: v1alpha1.ConditionDNSRemoved, Run: unnamed},        // no name leads to the addresses
			{Condition: v1alpha1.ConditionAddressesReleased, Run: release}, // only now may another have them
		},
	}
}

// Reconcile looks at one machine.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var machine v1alpha1.KubevirtMachine

	err := r.Client.Get(ctx, req.NamespacedName, &machine)
	if apierrors.IsNotFound(err) {
		return r.forget(ctx, req.NamespacedName)
	}

	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get machine: %w", err)
	}

	s := &scope{Reconciler: r, machine: &machine}
	if err := s.look(ctx); err != nil {
		return reconcile.Result{}, err
	}

	return step.Pass(ctx, r.Runner, &machine, plan(), s)
}

// look reads the machine's VirtualMachine and its instance.
func (s *scope) look(ctx context.Context) error {
	var err error
	if s.vm, err = s.read(ctx, s.Client, kubevirt.New(kubevirt.VirtualMachineKind())); err != nil {
		return err
	}

	if s.instance, err = s.read(ctx, s.Client, kubevirt.New(kubevirt.InstanceKind())); err != nil {
		return err
	}

	return s.lookForPool(ctx)
}

// read gets the object with the machine's name; nil if there is none.
func (s *scope) read(
	ctx context.Context, from client.Reader, into *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	err := from.Get(ctx, client.ObjectKeyFromObject(s.machine), into)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // nothing there is no error
	}

	if err != nil {
		return nil, fmt.Errorf("get %s: %w", into.GetKind(), err)
	}

	return into, nil
}

// forget frees what the address registry has for a machine whose object is gone. The finalizer sees to
// it that there is nothing, unless somebody took it off by force: then the VirtualMachine
// is waited for.
func (r *Reconciler) forget(ctx context.Context, name types.NamespacedName) (reconcile.Result, error) {
	owners := r.Addresses.Owners(kubevirt.OwnerPrefix(name.Namespace, name.Name))
	if len(owners) == 0 {
		return reconcile.Result{}, nil
	}

	for _, kind := range []*unstructured.Unstructured{
		kubevirt.New(kubevirt.VirtualMachineKind()), kubevirt.New(kubevirt.InstanceKind()),
	} {
		err := r.Live.Get(ctx, name, kind)
		if err == nil {
			return reconcile.Result{RequeueAfter: lookAgain}, nil
		}

		if !apierrors.IsNotFound(err) {
			return reconcile.Result{}, fmt.Errorf("get %s of a machine that is gone: %w", kind.GetKind(), err)
		}
	}

	// The cache may not have a new machine of the name yet.
	var machine v1alpha1.KubevirtMachine
	if err := r.Live.Get(ctx, name, &machine); !apierrors.IsNotFound(err) {
		return reconcile.Result{RequeueAfter: lookAgain}, client.IgnoreNotFound(err)
	}

	for _, owner := range owners {
		r.Addresses.Release(owner)
	}

	return reconcile.Result{}, nil
}
