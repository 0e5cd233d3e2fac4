// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// StartPause is how soon an object is looked at again whose cluster has no connection: an operator
// that has just been started makes them as it comes to their clusters. Until then what is on
// record of the object holds.
const StartPause = time.Second

// Clusters keeps one connection per HypervisorCluster. It is safe for concurrent use.
type Clusters struct {
	Secrets *Secrets
	// Factories by spec.provider.
	Factories map[string]hypervisor.Factory
	// Options for every connection.
	Options hypervisor.Options

	mu      sync.RWMutex
	entries map[string]clusterEntry
}

type clusterEntry struct {
	digest [sha256.Size]byte
	conn   hypervisor.Connection
}

// Ensure gives the cluster's connection. It reads the cluster's Secrets, and makes a
// new connection in place of the old one if anything has changed. Where a Secret does not
// allow it any more, the old connection is closed.
func (c *Clusters) Ensure(ctx context.Context, cluster *v1alpha1.HypervisorCluster) (hypervisor.Provider, error) {
	factory, ok := c.Factories[cluster.Spec.Provider]
	if !ok {
		return nil, errclass.New(errclass.Configuration, "ProviderUnknown",
			"connect to cluster %s: there is no provider %q", cluster.Name, cluster.Spec.Provider)
	}

	secrets, err := c.read(ctx, &cluster.Spec)
	if refused(err) {
		c.Forget(cluster.Name) // what was allowed once is not used on
	}

	if err != nil {
		return nil, err
	}

	digest, err := digestOf(cluster.Spec, secrets)
	if err != nil {
		return nil, fmt.Errorf("digest settings of cluster %s: %w", cluster.Name, err)
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	old, had := c.entries[cluster.Name]
	if had && old.digest == digest {
		return old.conn, nil
	}

	config, err := clusterConfig(cluster, secrets)
	if err != nil {
		return nil, err
	}

	conn, err := factory(config, c.Options)
	if err != nil {
		return nil, fmt.Errorf("connect to cluster %s: %w", cluster.Name, err)
	}

	if had {
		old.conn.Close()
	}

	if c.entries == nil {
		c.entries = map[string]clusterEntry{}
	}

	c.entries[cluster.Name] = clusterEntry{digest: digest, conn: conn}

	return conn, nil
}

// Get gives the connection of a cluster that Ensure was called for.
func (c *Clusters) Get(name string) (hypervisor.Provider, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()

	entry, ok := c.entries[name]

	return entry.conn, ok
}

// Each calls do for every connection there is.
func (c *Clusters) Each(do func(name string, provider hypervisor.Provider)) {
	c.mu.RLock()
	entries := maps.Clone(c.entries)
	c.mu.RUnlock()

	for name, entry := range entries {
		do(name, entry.conn)
	}
}

// Forget closes the connection of a cluster.
func (c *Clusters) Forget(name string) {
	c.mu.Lock()
	entry, ok := c.entries[name]
	delete(c.entries, name)
	c.mu.Unlock()

	if ok {
		entry.conn.Close()
	}
}

// Close closes every connection.
func (c *Clusters) Close() {
	c.mu.Lock()
	entries := c.entries
	c.entries = nil
	c.mu.Unlock()

	for _, entry := range entries {
		entry.conn.Close()
	}
}

// clusterSecrets are the values of spec.credentials and of spec.kubevirt.
type clusterSecrets struct {
	Credentials           hypervisor.Credentials
	ClientCert, ClientKey string
	Kubeconfig            string
}

func (c *Clusters) read(ctx context.Context, spec *v1alpha1.HypervisorClusterSpec) (clusterSecrets, error) {
	var out clusterSecrets

	fields := []struct {
		from *v1alpha1.SecretValueSource
		to   *string
	}{
		{spec.Credentials.TokenID, &out.Credentials.TokenID},
		{spec.Credentials.TokenSecret, &out.Credentials.TokenSecret},
		{spec.Credentials.Username, &out.Credentials.Username},
		{spec.Credentials.Password, &out.Credentials.Password},
		{spec.Credentials.ClientCert, &out.ClientCert},
		{spec.Credentials.ClientKey, &out.ClientKey},
	}

	// An administrator wrote the endpoint.
	to := credential.ToURL(spec.Endpoint)

	for _, field := range fields {
		value, err := c.Secrets.source(ctx, field.from, "", to)
		if err != nil {
			return clusterSecrets{}, err
		}

		*field.to = value
	}

	if spec.KubeVirt != nil && spec.KubeVirt.KubeconfigSecretRef != nil {
		value, err := c.Secrets.Kubeconfig(ctx, *spec.KubeVirt.KubeconfigSecretRef, "")
		if err != nil {
			return clusterSecrets{}, err
		}

		out.Kubeconfig = value
	}

	return out, nil
}

// digestOf fingerprints settings and secrets together. Only the digest is kept.
func digestOf(parts ...any) ([sha256.Size]byte, error) {
	text, err := json.Marshal(parts)
	if err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("marshal settings: %w", err)
	}

	return sha256.Sum256(text), nil
}

func clusterConfig(cluster *v1alpha1.HypervisorCluster, secrets clusterSecrets) (hypervisor.Config, error) {
	spec := &cluster.Spec

	tlsConfig, err := hypervisor.TLSConfig(spec.TLS, []byte(secrets.ClientCert), []byte(secrets.ClientKey))
	if err != nil {
		return hypervisor.Config{}, errclass.Wrap(errclass.Configuration, "TLSInvalid", err)
	}

	config := hypervisor.Config{
		Name:           cluster.Name,
		Endpoint:       spec.Endpoint,
		Credentials:    secrets.Credentials,
		TLS:            tlsConfig,
		Nodes:          spec.Nodes,
		DefaultStorage: spec.DefaultStorage,
		ISOStorage:     spec.ISOStorage,
		DefaultNetwork: spec.DefaultNetwork,
		ResourcePool:   spec.ResourcePool,
		Tags:           spec.Tags,
	}

	if source := spec.KubeVirt; source != nil {
		config.Kubeconfig, config.Namespace, config.NodeSelector = []byte(secrets.Kubeconfig), source.Namespace, source.NodeSelector
		config.DefaultStorage, config.DefaultNetwork = source.StorageClassName, source.Network
	}

	if spec.VMIDRange != nil {
		config.IDMin, config.IDMax = int(spec.VMIDRange.Min), int(spec.VMIDRange.Max)
	}

	if spec.Limits != nil {
		config.ClonesPerStorage = int(spec.Limits.ClonesPerStorage)
		config.CallsPerNode = int(spec.Limits.CallsPerNode)
	}

	return config, nil
}
