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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// syncTimeout bounds the first reading of all objects.
const syncTimeout = time.Minute

// Kinds that views show, by their name.
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

// kind has a kind's objects.
type kind struct {
	object client.Object
	list   client.ObjectList
}

func kinds() map[string]kind {
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

// AddToScheme adds the kinds that views show.
func AddToScheme(scheme *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, infrav1.AddToScheme, bridgev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}

	return nil
}

// View follows the objects of a cluster.
type View struct {
	// Live reads from the API server itself.
	Live client.Client
	// Server is its address, for people.
	Server string
	// Namespace that is shown; empty means all.
	Namespace string
	// Missing kinds, and why they can't be shown.
	Missing map[string]string

	cache cache.Cache
}

// Connect finds the API server as the flags say, and opens the namespace that they name, or all:
// unlike commands that list, views show all namespaces where none is named.
func Connect(ctx context.Context, kube cli.Kube) (*View, error) {
	cluster, err := kube.Connect(AddToScheme)
	if err != nil {
		return nil, err
	}

	return Open(ctx, cluster, kube.Namespace)
}

// Open reads all objects of a cluster that the user may read, in a namespace or in all, and
// follows them until ctx ends. Objects may be some moments old, never older than the API server
// can be reached.
func Open(ctx context.Context, cluster *cli.Cluster, namespace string) (*View, error) {
	out := &View{Live: cluster.Client, Server: cluster.Config.Host, Namespace: namespace, Missing: map[string]string{}}

	config := rest.CopyConfig(cluster.Config)
	config.Timeout = 0 // watches last

	options := cache.Options{Scheme: cluster.Client.Scheme(), DefaultTransform: cache.TransformStripManagedFields()}
	if namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}

	var err error
	if out.cache, err = cache.New(config, options); err != nil {
		return nil, fmt.Errorf("follow objects: %w", err)
	}

	if err := out.follow(ctx); err != nil {
		return nil, err
	}

	go func() { _ = out.cache.Start(ctx) }() // it ends with ctx, and has no other error

	waited, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()

	if !out.cache.WaitForCacheSync(waited) {
		return nil, fmt.Errorf("follow objects: the API server has not sent them within %s", syncTimeout)
	}

	return out, nil
}

// follow chooses the kinds that there are and that the user may read.
func (v *View) follow(ctx context.Context) error {
	all := kinds()

	for _, name := range slices.Sorted(maps.Keys(all)) {
		kind := all[name]

		err := v.Live.List(ctx, kind.list, client.InNamespace(v.Namespace), client.Limit(1))

		switch {
		case meta.IsNoMatchError(err) || apierrors.IsNotFound(err):
			v.Missing[name] = "the cluster has no " + name + "s"

			continue
		case apierrors.IsForbidden(err):
			v.Missing[name] = "you may not list " + name + "s " + v.where()

			continue
		case err != nil:
			return fmt.Errorf("list %ss %s: %w", name, v.where(), err)
		}

		if _, err := v.cache.GetInformer(ctx, kind.object, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("follow %ss: %w", name, err)
		}
	}

	if len(v.Missing) == len(all) {
		return fmt.Errorf("nothing to show: %s", strings.Join(slices.Sorted(maps.Values(v.Missing)), "; "))
	}

	return nil
}

func (v *View) where() string {
	if v.Namespace == "" {
		return "in all namespaces (--namespace shows one)"
	}

	return "in namespace " + v.Namespace
}

// Get reads one object.
func (v *View) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if !v.followed(into) {
		return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("objects").GroupResource(), key.String())
	}

	return v.cache.Get(ctx, key, into)
}

// List reads all objects of a kind, none where the kind is missing. They belong to the cache
// and must not be changed.
func (v *View) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if !v.followed(list) {
		return nil
	}

	return v.cache.List(ctx, list, append(options, client.UnsafeDisableDeepCopy)...)
}

// followed says whether an object's or a list's kind is followed.
func (v *View) followed(of runtime.Object) bool {
	gvk, err := v.Live.GroupVersionKindFor(of)
	if err != nil {
		return false
	}

	_, missing := v.Missing[strings.TrimSuffix(gvk.Kind, "List")]

	return !missing
}
