// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// counts has the numbers of calls of the area to the API server and to its cache.
type counts struct {
	mu      sync.Mutex
	bridges map[types.NamespacedName]*bridgeCount
	// unselected are the lists without a field selector.
	unselected []string
	// listed is the number of list requests that reached the API server.
	listed int
	// registry has the metrics of the area.
	registry *prometheus.Registry
}

// bridgeCount has the reconciles of a bridge. Each reconcile begins with a get of the bridge. Reconciles of a
// copy that is older than the last write are not counted, because they do nothing.
type bridgeCount struct {
	reconciles int
	// idle is how many of the reconciles before the last one have written no status.
	idle int
	// written is the resourceVersion of the last write of the status. isIdle is whether the last reconcile
	// has written none.
	written string
	isIdle  bool
}

func newCounts() *counts {
	return &counts{bridges: map[types.NamespacedName]*bridgeCount{}, registry: prometheus.NewRegistry()}
}

// bridge returns the counts of a bridge. The caller holds the lock.
func (c *counts) bridge(key types.NamespacedName) *bridgeCount {
	if c.bridges[key] == nil {
		c.bridges[key] = &bridgeCount{}
	}

	return c.bridges[key]
}

func (c *counts) recordReconcile(bridge *v1alpha1.DPFHCPBridge) {
	c.mu.Lock()
	defer c.mu.Unlock()

	count := c.bridge(client.ObjectKeyFromObject(bridge))
	if order, err := resourceversion.CompareResourceVersion(bridge.ResourceVersion, count.written); err == nil && order < 0 {
		return
	}

	if count.isIdle {
		count.idle++
	}

	count.reconciles, count.isIdle = count.reconciles+1, true
}

func (c *counts) recordWrite(bridge *v1alpha1.DPFHCPBridge) {
	c.mu.Lock()
	defer c.mu.Unlock()

	count := c.bridge(client.ObjectKeyFromObject(bridge))
	count.written, count.isIdle = bridge.ResourceVersion, false
}

func (c *counts) newClient(config *rest.Config, options client.Options) (client.Client, error) {
	made, err := client.New(config, options)

	return &countingClient{made, c}, err
}

func (c *counts) transport(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if r.Method == http.MethodGet && !r.URL.Query().Has("watch") && err == nil && isList(r.URL.Path) {
			c.mu.Lock()
			c.listed++
			c.mu.Unlock()
		}

		return response, err
	})
}

// isList returns whether a path is that of a list request: /api/v1/RESOURCE, /apis/GROUP/V/RESOURCE, or
// the same in a namespace.
func isList(path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if len(parts) < 3 {
		return false
	}

	tail := parts[2:]
	if parts[0] == "apis" {
		tail = parts[3:]
	}

	if len(tail) > 2 && tail[0] == "namespaces" {
		tail = tail[2:]
	}

	return len(tail) == 1
}

// listCount returns how many list requests have reached the API server.
func (c *counts) listCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.listed
}

// reconcileCount returns how many times a bridge was reconciled, and how many of these wrote nothing.
func (c *counts) reconcileCount(key types.NamespacedName) (all, idle int) {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.bridge(key).reconciles, c.bridge(key).idle
}

// check returns an error if a list did not use an index.
func (c *counts) check() error {
	c.mu.Lock()
	defer c.mu.Unlock()

	if len(c.unselected) > 0 {
		return fmt.Errorf("%d lists of everything: %v", len(c.unselected), c.unselected) //nolint:err113 // for a person
	}

	return nil
}

type countingClient struct {
	client.Client

	counts *counts
}

func (c *countingClient) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	err := c.Client.Get(ctx, key, object, options...)
	if bridge, ok := object.(*v1alpha1.DPFHCPBridge); ok && err == nil {
		c.counts.recordReconcile(bridge)
	}

	return err
}

func (c *countingClient) Status() client.SubResourceWriter {
	return &countingStatusWriter{c.Client.Status(), c.counts}
}

type countingStatusWriter struct {
	client.SubResourceWriter

	counts *counts
}

func (w *countingStatusWriter) Patch(
	ctx context.Context, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption,
) error {
	err := w.SubResourceWriter.Patch(ctx, object, patch, options...)
	if bridge, ok := object.(*v1alpha1.DPFHCPBridge); ok && err == nil {
		w.counts.recordWrite(bridge)
	}

	return err
}

func (c *countingClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	var all client.ListOptions
	all.ApplyOptions(options)

	if (all.FieldSelector == nil || all.FieldSelector.Empty()) && all.Namespace == "" {
		c.counts.mu.Lock()
		c.counts.unselected = append(c.counts.unselected, fmt.Sprintf("%T", list))
		c.counts.mu.Unlock()
	}

	return c.Client.List(ctx, list, options...)
}

func newList(kind schema.GroupVersionKind) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)

	return list
}

// mergePatch returns a merge patch.
func mergePatch(value any) client.Patch {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}

	return client.RawPatch(types.MergePatchType, raw)
}
