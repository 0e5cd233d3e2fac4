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
	// A new API server goes on to write things of its own for a moment after it is ready.
	settleTime = 500 * time.Millisecond
	lookAgain  = 20 * time.Millisecond
	emptyTime  = time.Minute
	callTime   = 20 * time.Second
	// transaction is how many operations etcd takes at once (--max-txn-ops).
	transaction = 128
)

var errNotEmpty = errors.New("the API server still shows what was removed")

// contents is what there is in a control plane that nobody has used.
type contents struct {
	keys   map[string]entry
	groups []string
}

// entry is a key of etcd: all in base64, as its gateway has it (etcd, api/v3 JSON).
type entry struct {
	Key         string `json:"key"`
	Value       string `json:"value,omitempty"`
	ModRevision string `json:"mod_revision,omitempty"`
}

// settled waits until the control plane writes nothing more, and gives what it has.
func settled(ctx context.Context, cluster *kubeproc.Cluster) (*contents, error) {
	ctx, cancel := context.WithTimeout(ctx, emptyTime)
	defer cancel()

	var last []string

	for {
		keys, err := list(ctx, cluster, false)
		if err != nil {
			return nil, err
		}

		now := slices.Sorted(maps.Keys(keys))
		if slices.Equal(now, last) {
			groups, err := groups(ctx, cluster)

			return &contents{keys: keys, groups: groups}, err
		}

		last = now

		if err := sleep(ctx, settleTime); err != nil {
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

// restore makes a control plane what it was, behind the API server's back: its caches
// follow etcd. So nothing waits for finalizers, and it takes as long for one object as
// for thousands.
func (c *contents) restore(ctx context.Context, cluster *kubeproc.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, emptyTime)
	defer cancel()

	now, err := list(ctx, cluster, true)
	if err != nil {
		return err
	}

	var operations []any

	for key, is := range now {
		was, known := c.keys[key]

		switch {
		case ofTheServer(key):
		case !known:
			operations = append(operations, map[string]any{"request_delete_range": map[string]string{"key": is.Key}})
		case was.ModRevision != is.ModRevision:
			operations = append(operations, put(was))
		}
	}

	for key, was := range c.keys {
		if _, there := now[key]; !there && !ofTheServer(key) {
			operations = append(operations, put(was))
		}
	}

	for chunk := range slices.Chunk(operations, transaction) {
		if err := etcd(ctx, cluster, "kv/txn", map[string]any{"success": chunk}, &struct{}{}); err != nil {
			return err
		}
	}

	return c.awaitShown(ctx, cluster)
}

func put(e entry) map[string]any {
	return map[string]any{"request_put": map[string]string{"key": e.Key, "value": e.Value}}
}

// ofTheServer are keys that the API server itself writes again and again.
func ofTheServer(key string) bool {
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

// awaitShown waits until the API server's caches show what is there.
func (c *contents) awaitShown(ctx context.Context, cluster *kubeproc.Cluster) error {
	config, err := cluster.AdminConfig()
	if err != nil {
		return err
	}

	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}

	for {
		shown, err := groups(ctx, cluster)
		if err != nil {
			return err
		}

		// A list of the latest is a read that the caches have to catch up for.
		namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list namespaces: %w", err)
		}

		extra := slices.DeleteFunc(namespaces.Items, func(n corev1.Namespace) bool {
			_, known := c.keys["/registry/namespaces/"+n.Name]

			return known
		})
		if slices.Equal(shown, c.groups) && len(extra) == 0 {
			return nil
		}

		if err := sleep(ctx, lookAgain); err != nil {
			return errors.Join(errNotEmpty, err)
		}
	}
}

// groups are the names of the API groups that are served.
func groups(ctx context.Context, cluster *kubeproc.Cluster) ([]string, error) {
	config, err := cluster.AdminConfig()
	if err != nil {
		return nil, err
	}

	config = rest.CopyConfig(config)
	config.Timeout = callTime

	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}

	served, err := client.ServerGroupsWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("list API groups: %w", err)
	}

	var names []string
	for i := range served.Groups {
		names = append(names, served.Groups[i].Name)
	}

	slices.Sort(names)

	return names, nil
}

// list gives all keys of etcd, with their values if they may have to be put back.
func list(ctx context.Context, cluster *kubeproc.Cluster, keysOnly bool) (map[string]entry, error) {
	var answer struct {
		KVs []entry `json:"kvs"`
	}

	// From the lowest key to the end of all (etcd, RangeRequest: both ends zero).
	all := base64.StdEncoding.EncodeToString([]byte{0})
	request := map[string]any{"key": all, "range_end": all, "keys_only": keysOnly}
	if err := etcd(ctx, cluster, "kv/range", request, &answer); err != nil {
		return nil, err
	}

	out := make(map[string]entry, len(answer.KVs))

	for _, e := range answer.KVs {
		key, err := base64.StdEncoding.DecodeString(e.Key)
		if err != nil {
			return nil, fmt.Errorf("read etcd's keys: %w", err)
		}

		out[string(key)] = e
	}

	return out, nil
}

var errEtcd = errors.New("etcd refused")

// etcd calls etcd's JSON gateway.
func etcd(ctx context.Context, cluster *kubeproc.Cluster, what string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode a request to etcd: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, cluster.EtcdURL()+"/v3/"+what, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("ask etcd: %w", err)
	}

	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask etcd: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read

	data, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("read etcd's answer: %w", err)
	}

	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%w %s: %s: %s", errEtcd, what, response.Status, data[:min(len(data), 200)]) //nolint:mnd // a line of it
	}

	return json.Unmarshal(data, answer)
}
