// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/crds"
)

// syncTimeout limits the time for the initial lists of all objects.
const syncTimeout = time.Minute

// Kinds that views show.
const (
	KindPool     = "RunnerPool"
	KindJob      = "RunnerJob"
	KindMachine  = "MachineClaim"
	KindCluster  = "HypervisorCluster"
	KindTemplate = "HypervisorMachineTemplate"
	KindFleet    = "HostFleet"
	KindLinux    = "LinuxMachine"
	KindMac      = "ScalewayAppleSiliconMachine"
	KindBridge   = "DPFHCPBridge"
)

// kind has an empty object and an empty list of a kind.
type kind struct {
	object client.Object
	list   client.ObjectList
}

func viewKinds() map[string]kind {
	return map[string]kind{
		KindPool:     {&v1alpha1.RunnerPool{}, &v1alpha1.RunnerPoolList{}},
		KindJob:      {&v1alpha1.RunnerJob{}, &v1alpha1.RunnerJobList{}},
		KindMachine:  {&v1alpha1.MachineClaim{}, &v1alpha1.MachineClaimList{}},
		KindCluster:  {&v1alpha1.HypervisorCluster{}, &v1alpha1.HypervisorClusterList{}},
		KindTemplate: {&v1alpha1.HypervisorMachineTemplate{}, &v1alpha1.HypervisorMachineTemplateList{}},
		KindFleet:    {&infrav1.HostFleet{}, &infrav1.HostFleetList{}},
		KindLinux:    {&infrav1.LinuxMachine{}, &infrav1.LinuxMachineList{}},
		KindMac:      {&infrav1.ScalewayAppleSiliconMachine{}, &infrav1.ScalewayAppleSiliconMachineList{}},
		KindBridge:   {&bridgev1.DPFHCPBridge{}, &bridgev1.DPFHCPBridgeList{}},
	}
}

// AddToScheme adds the kinds that views show to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, infrav1.AddToScheme, bridgev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}

	return nil
}

// View reads the objects of a cluster from a cache. It implements client.Reader.
type View struct {
	// APIClient sends requests to the API server. It does not read the cache.
	APIClient client.Client
	// Server is the URL of the API server for display.
	Server string
	// Namespace of the objects in the view; if it is empty, the view has all namespaces.
	Namespace string
	// Missing has the error of each kind that the view cannot show: Forbidden if the user has no permission to
	// list the kind, or NotFound if the kind is not installed.
	Missing map[string]error

	cache cache.Cache
}

// Connect connects to the API server of the flags and opens a view of the namespace. If the flags name no
// namespace, the view has all namespaces. In this, views differ from the commands that list objects, which
// use the namespace of the context.
func Connect(ctx context.Context, kube cli.Kube) (*View, error) {
	cluster, err := kube.Connect(AddToScheme)
	if err != nil {
		return nil, err
	}

	return Open(ctx, cluster, kube.Namespace)
}

// Open returns a view of all objects of a cluster that the user has permission to read, in one namespace or
// in all if namespace is empty. It waits until the initial lists are complete. Watches keep the objects up to
// date until ctx ends. While the API server is unreachable, the view has the last known objects.
func Open(ctx context.Context, cluster *cli.Cluster, namespace string) (*View, error) {
	out := &View{APIClient: cluster.Client, Server: cluster.Config.Host, Namespace: namespace, Missing: map[string]error{}}

	config := rest.CopyConfig(cluster.Config)
	config.Timeout = 0 // a timeout would end the watches

	options := cache.Options{Scheme: cluster.Client.Scheme(), DefaultTransform: cache.TransformStripManagedFields()}
	if namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}

	var err error
	if out.cache, err = cache.New(config, options); err != nil {
		return nil, fmt.Errorf("create cache: %w", err)
	}

	if err := out.addInformers(ctx); err != nil {
		return nil, err
	}

	go func() { _ = out.cache.Start(ctx) }() // Start returns when ctx ends, and returns no other error

	syncCtx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()

	if !out.cache.WaitForCacheSync(syncCtx) {
		return nil, fmt.Errorf("sync cache: the API server did not return all objects within %s", syncTimeout)
	}

	return out, nil
}

// addInformers adds an informer for each kind that is installed and that the user has permission to list, and
// records the other kinds in Missing. It returns an error if no kind can be shown.
func (v *View) addInformers(ctx context.Context) error {
	all := viewKinds()

	for _, name := range slices.Sorted(maps.Keys(all)) {
		kind := all[name]

		err := v.APIClient.List(ctx, kind.list, client.InNamespace(v.Namespace), client.Limit(1))

		switch {
		case meta.IsNoMatchError(err) || apierrors.IsNotFound(err):
			v.Missing[name] = newStatusError(metav1.StatusReasonNotFound, "the CRD of "+name+"s is not installed")

			continue
		case apierrors.IsForbidden(err):
			v.Missing[name] = newStatusError(metav1.StatusReasonForbidden, "no permission to list "+name+"s "+v.formatScope())

			continue
		case err != nil:
			return fmt.Errorf("list %ss %s: %w", name, v.formatScope(), err)
		}

		if _, err := v.cache.GetInformer(ctx, kind.object, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watch %ss: %w", name, err)
		}
	}

	isInstalled := func(reason error) bool { return !apierrors.IsNotFound(reason) }

	if len(v.Missing) == len(all) && !slices.ContainsFunc(slices.Collect(maps.Values(v.Missing)), isInstalled) {
		return crds.ErrNotInstalled
	}

	if len(v.Missing) == len(all) {
		return fmt.Errorf("nothing to show: %s", strings.Join(v.MissingReasons(slices.Sorted(maps.Keys(all))...), "; "))
	}

	return nil
}

// newStatusError returns an error that the functions of apierrors classify by its reason.
func newStatusError(reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Reason: reason, Message: message}}
}

// MissingReasons returns the reasons for those of the given kinds that the view cannot show.
func (v *View) MissingReasons(kinds ...string) []string {
	var out []string

	for _, kind := range kinds {
		if err, ok := v.Missing[kind]; ok {
			out = append(out, err.Error())
		}
	}

	return out
}

// CheckNamespace returns a NotFound error if the namespace of the view does not exist. It asks the API server
// only if the view has no object of the namespace. It returns nil if the user has no permission to get the
// namespace.
func (v *View) CheckNamespace(ctx context.Context) error {
	if v.Namespace == "" {
		return nil
	}

	for name, kind := range viewKinds() {
		if name == KindCluster { // has no namespace
			continue
		}

		if err := v.List(ctx, kind.list, client.Limit(1)); err != nil || meta.LenList(kind.list) > 0 {
			return err
		}
	}

	if err := v.APIClient.Get(ctx, client.ObjectKey{Name: v.Namespace}, &corev1.Namespace{}); apierrors.IsNotFound(err) {
		return newStatusError(metav1.StatusReasonNotFound, "namespace "+v.Namespace+" does not exist: check --namespace")
	}

	return nil
}

func (v *View) formatScope() string {
	if v.Namespace == "" {
		return "in all namespaces (use --namespace to show one namespace)"
	}

	return "in namespace " + v.Namespace
}

// Get reads one object from the cache. It returns the error of Missing if the kind is missing, and a NotFound
// error if the object is in a namespace that the view does not have.
func (v *View) Get(ctx context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if err := v.missing(obj); err != nil {
		return err
	}

	if v.Namespace != "" && key.Namespace != "" && key.Namespace != v.Namespace {
		return newStatusError(metav1.StatusReasonNotFound,
			"only objects of namespace "+v.Namespace+" are shown, not those of namespace "+key.Namespace)
	}

	return v.cache.Get(ctx, key, obj)
}

// List reads all objects of a kind from the cache, and no objects if the kind is missing. The caller must not
// change the objects, because they belong to the cache.
func (v *View) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if v.missing(list) != nil {
		return nil //nolint:nilerr // a missing kind has no objects
	}

	return v.cache.List(ctx, list, append(options, client.UnsafeDisableDeepCopy)...)
}

// missing returns the error of Missing for the kind of an object or of a list.
func (v *View) missing(obj runtime.Object) error {
	gvk, err := v.APIClient.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}

	return v.Missing[strings.TrimSuffix(gvk.Kind, "List")]
}
