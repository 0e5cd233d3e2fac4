// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

const (
	// settleInterval is the interval without writes after which a new control plane counts as settled. A new
	// API server still writes its own objects for a short time after it is ready.
	settleInterval      = 500 * time.Millisecond
	restorePollInterval = 20 * time.Millisecond
	restoreTimeout      = time.Minute
	callTimeout         = 20 * time.Second
	// maxTransactionOps is the maximum number of operations in an etcd transaction (--max-txn-ops).
	maxTransactionOps = 128
)

var errNotRestored = errors.New("the API server still serves deleted objects")

// contents has the etcd keys of a control plane between leases, and the resources that its API server serves.
type contents struct {
	keys      map[string]entry
	resources []string
}

// entry is a key of etcd. Its key and value are in base64, as in the JSON gateway of etcd (api/v3).
type entry struct {
	Key         string `json:"key"`
	Value       string `json:"value,omitempty"`
	ModRevision string `json:"mod_revision,omitempty"`
}

// waitSettled waits until the control plane creates no more keys, and returns its contents.
func waitSettled(ctx context.Context, cluster *kubeproc.Cluster) (*contents, error) {
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()

	var last []string

	for {
		keys, err := listKeys(ctx, cluster, withValues)
		if err != nil {
			return nil, err
		}

		names := slices.Sorted(maps.Keys(keys))
		if slices.Equal(names, last) {
			resources, err := servedResources(ctx, cluster)

			return &contents{keys: keys, resources: resources}, err
		}

		last = names

		if err := sleep(ctx, settleInterval); err != nil {
			return nil, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// restore restores the contents of a control plane directly in etcd. The API server's caches follow etcd. This
// way, the restore does not wait for finalizers, and its duration hardly depends on the number of objects.
func (c *contents) restore(ctx context.Context, cluster *kubeproc.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()

	keys, err := listKeys(ctx, cluster, keysOnly)
	if err != nil {
		return err
	}

	var operations []any

	for key, current := range keys {
		original, isOriginal := c.keys[key]

		switch {
		case isServerKey(key):
		case !isOriginal:
			operations = append(operations, map[string]any{"request_delete_range": map[string]string{"key": current.Key}})
		case original.ModRevision != current.ModRevision:
			operations = append(operations, putOperation(original))
		}
	}

	for key, original := range c.keys {
		if _, exists := keys[key]; !exists && !isServerKey(key) {
			operations = append(operations, putOperation(original))
		}
	}

	for chunk := range slices.Chunk(operations, maxTransactionOps) {
		if err := callEtcd(ctx, cluster, "kv/txn", map[string]any{"success": chunk}, &struct{}{}); err != nil {
			return err
		}
	}

	return c.waitRestored(ctx, cluster)
}

func putOperation(e entry) map[string]any {
	return map[string]any{"request_put": map[string]string{"key": e.Key, "value": e.Value}}
}

// isServerKey returns true for keys that the API server itself writes periodically.
func isServerKey(key string) bool {
	for _, prefix := range []string{
		"/registry/leases/kube-system/", "/registry/masterleases/", "/registry/ranges/",
		"/registry/apiregistration.k8s.io/", "compact_rev_key",
	} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}

	return false
}

// waitRestored waits until the API server serves the restored resources and namespaces.
func (c *contents) waitRestored(ctx context.Context, cluster *kubeproc.Cluster) error {
	config, err := cluster.AdminConfig()
	if err != nil {
		return err
	}

	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}

	for {
		served, err := servedResources(ctx, cluster)
		if err != nil {
			return err
		}

		// A consistent list makes the cache of the API server catch up with etcd.
		namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list namespaces: %w", err)
		}

		extra := slices.DeleteFunc(namespaces.Items, func(n corev1.Namespace) bool {
			_, isOriginal := c.keys["/registry/namespaces/"+n.Name]

			return isOriginal
		})
		if slices.Equal(served, c.resources) && len(extra) == 0 {
			return nil
		}

		if err := sleep(ctx, restorePollInterval); err != nil {
			return errors.Join(errNotRestored, err)
		}
	}
}

// servedResources returns the sorted names of the resources that the API server serves, with their versions.
func servedResources(ctx context.Context, cluster *kubeproc.Cluster) ([]string, error) {
	config, err := cluster.AdminConfig()
	if err != nil {
		return nil, err
	}

	config = rest.CopyConfig(config)
	config.Timeout = callTimeout

	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}

	_, served, err := client.ServerGroupsAndResourcesWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("list API resources: %w", err)
	}

	var names []string

	for _, list := range served {
		for i := range list.APIResources {
			names = append(names, list.GroupVersion+"/"+list.APIResources[i].Name)
		}
	}

	slices.Sort(names)

	return names, nil
}

// keysOnly and withValues are the values of the parameter isKeysOnly.
const keysOnly, withValues = true, false

// listKeys returns all keys of etcd. It returns their values too, unless isKeysOnly is true.
func listKeys(ctx context.Context, cluster *kubeproc.Cluster, isKeysOnly bool) (map[string]entry, error) {
	var response struct {
		KVs []entry `json:"kvs"`
	}

	// A range with the zero byte at both ends contains all keys (etcd, RangeRequest).
	all := base64.StdEncoding.EncodeToString([]byte{0})
	request := map[string]any{"key": all, "range_end": all, "keys_only": isKeysOnly}
	if err := callEtcd(ctx, cluster, "kv/range", request, &response); err != nil {
		return nil, err
	}

	out := make(map[string]entry, len(response.KVs))

	for _, e := range response.KVs {
		key, err := base64.StdEncoding.DecodeString(e.Key)
		if err != nil {
			return nil, fmt.Errorf("decode a key of etcd: %w", err)
		}

		out[string(key)] = e
	}

	return out, nil
}

var errEtcd = errors.New("etcd rejected the request")

// callEtcd calls the JSON gateway of etcd and decodes its response.
func callEtcd(ctx context.Context, cluster *kubeproc.Cluster, method string, request, out any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode a request to etcd: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, cluster.EtcdURL()+"/v3/"+method, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("call etcd: %w", err)
	}

	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("call etcd: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // the body is only read

	data, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("read etcd's response: %w", err)
	}

	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%w %s: %s: %s", errEtcd, method, response.Status, data[:min(len(data), 200)]) //nolint:mnd // about one line
	}

	return json.Unmarshal(data, out)
}
