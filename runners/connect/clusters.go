// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// StartupRequeueDelay is the delay of the next reconcile of an object whose cluster has no
// connection yet. A new operator process creates the connections as it reconciles the clusters.
// Until then, the status of the object stays as it is.
const StartupRequeueDelay = time.Second

// Clusters keeps one connection per HypervisorCluster. It is safe for concurrent use.
type Clusters struct {
	Secrets *Secrets
	// Factories by spec.provider.
	Factories map[string]hypervisor.Factory
	// Options of all connections.
	Options hypervisor.Options
	// Operators is the number of operators that share the limits of the hypervisors. 0 means 1.
	Operators int

	mu      sync.RWMutex
	entries map[string]clusterEntry
}

type clusterEntry struct {
	digest [sha256.Size]byte
	conn   hypervisor.Connection
}

// Ensure returns the cluster's connection. It reads the cluster's Secrets, and replaces the
// connection if the spec or a Secret has changed. If a Secret no longer allows its use, Ensure
// closes the connection and returns the error.
func (c *Clusters) Ensure(ctx context.Context, cluster *v1alpha1.HypervisorCluster) (hypervisor.Provider, error) {
	factory, ok := c.Factories[cluster.Spec.Provider]
	if !ok {
		return nil, errclass.New(errclass.Configuration, "ProviderUnknown",
			"connect to cluster %s: provider %q is unknown", cluster.Name, cluster.Spec.Provider)
	}

	secrets, err := c.readSecrets(ctx, &cluster.Spec)
	if isForbiddenSecret(err) {
		c.Forget(cluster.Name) // the connection uses a credential that is no longer allowed
	}

	if err != nil {
		return nil, err
	}

	digest, err := computeDigest(cluster.Spec, secrets)
	if err != nil {
		return nil, fmt.Errorf("compute digest of settings of cluster %s: %w", cluster.Name, err)
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	old, exists := c.entries[cluster.Name]
	if exists && old.digest == digest {
		return old.conn, nil
	}

	config, err := newClusterConfig(cluster, secrets)
	if err != nil {
		return nil, err
	}

	divideLimits(&config, c.Operators)

	conn, err := factory(config, c.Options)
	if err != nil {
		return nil, fmt.Errorf("connect to cluster %s: %w", cluster.Name, err)
	}

	if exists {
		old.conn.Close()
	}

	if c.entries == nil {
		c.entries = map[string]clusterEntry{}
	}

	c.entries[cluster.Name] = clusterEntry{digest: digest, conn: conn}

	return conn, nil
}

// Get returns the connection of a cluster, and false if Ensure did not create one.
func (c *Clusters) Get(name string) (hypervisor.Provider, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()

	entry, ok := c.entries[name]

	return entry.conn, ok
}

// ForEach calls do for each connection.
func (c *Clusters) ForEach(do func(name string, provider hypervisor.Provider)) {
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

// clusterSecrets holds the values of the Secrets of spec.credentials and spec.kubevirt.
type clusterSecrets struct {
	Credentials           hypervisor.Credentials
	ClientCert, ClientKey string
	SSHPrivateKey         string
	Kubeconfig            string
}

// readSecrets reads the credentials that a spec names. A field without a source is empty.
func (c *Clusters) readSecrets(ctx context.Context, spec *v1alpha1.HypervisorClusterSpec) (clusterSecrets, error) {
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
		{spec.Credentials.SSHPrivateKey, &out.SSHPrivateKey},
	}

	// An administrator wrote the endpoint and the hosts, so the credentials may be sent to them.
	destination := credential.DestinationOfURL(spec.Endpoint)
	if spec.Libvirt != nil {
		destination = credential.NewDestination(serversOfHosts(spec.Libvirt.Hosts)...)
	}

	if spec.External != nil && !strings.HasPrefix(spec.External.Address, "unix:") {
		destination = credential.NewDestination(spec.External.Address)
	}

	for _, field := range fields {
		value, err := c.Secrets.readSource(ctx, field.from, "", destination)
		if err != nil {
			return clusterSecrets{}, err
		}

		*field.to = value
	}

	if spec.KubeVirt != nil && spec.KubeVirt.KubeconfigSecretRef != nil {
		value, err := c.Secrets.ReadKubeconfig(ctx, *spec.KubeVirt.KubeconfigSecretRef, "")
		if err != nil {
			return clusterSecrets{}, err
		}

		out.Kubeconfig = value
	}

	return out, nil
}

// serversOfHosts returns the servers of libvirt hosts as host:port. A host with a Unix socket has none.
func serversOfHosts(hosts []v1alpha1.LibvirtHost) []string {
	ports := map[string]string{"qemu+tls": hypervisor.PortLibvirtTLS, "qemu+ssh": hypervisor.PortSSH}

	var servers []string

	for _, host := range hosts {
		u, err := url.Parse(host.URI)
		if err == nil && u.Hostname() != "" {
			servers = append(servers, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), ports[u.Scheme])))
		}
	}

	return servers
}

// computeDigest returns one digest of the settings and the Secrets. Only the digest is kept.
func computeDigest(parts ...any) ([sha256.Size]byte, error) {
	text, err := json.Marshal(parts)
	if err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("marshal settings: %w", err)
	}

	return sha256.Sum256(text), nil
}

func newClusterConfig(cluster *v1alpha1.HypervisorCluster, secrets clusterSecrets) (hypervisor.Config, error) {
	spec := &cluster.Spec

	tlsConfig, err := hypervisor.NewTLSConfig(spec.TLS, []byte(secrets.ClientCert), []byte(secrets.ClientKey))
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

	if source := spec.Libvirt; source != nil {
		config.DomainType, config.SSHPrivateKey = source.DomainType, []byte(secrets.SSHPrivateKey)

		for i := range source.Hosts {
			config.Hosts = append(config.Hosts, newHostConfig(&source.Hosts[i]))
		}
	}

	if source := spec.External; source != nil {
		config.Address, config.Settings = source.Address, source.Settings
	}

	if spec.VMIDRange != nil {
		config.IDMin, config.IDMax = int(spec.VMIDRange.Min), int(spec.VMIDRange.Max)
	}

	if spec.Limits != nil {
		config.ClonesPerStorage = int(spec.Limits.ClonesPerStorage)
		config.CallsPerNode = int(spec.Limits.CallsPerNode)
		config.MemoryPercent = int(spec.Limits.MemoryPercent)
	}

	return config, nil
}

// The limits of a HypervisorCluster without spec.limits, as in the defaults of the CRD.
const (
	defaultClonesPerStorage = 2
	defaultCallsPerNode     = 4
)

// divideLimits gives this operator its part of the limits of a hypervisor that several operators use. The part is at
// least 1, so with more operators than the limit, the operators together exceed the limit.
func divideLimits(config *hypervisor.Config, operators int) {
	if operators <= 1 {
		return
	}

	config.ClonesPerStorage = max(cmp.Or(config.ClonesPerStorage, defaultClonesPerStorage)/operators, 1)
	config.CallsPerNode = max(cmp.Or(config.CallsPerNode, defaultCallsPerNode)/operators, 1)
}

func newHostConfig(host *v1alpha1.LibvirtHost) hypervisor.Host {
	config := hypervisor.Host{
		Name: host.Name, URI: host.URI, SSHHostKey: host.SSHHostKey, StoragePool: host.StoragePool,
		Network: host.Network, Bridge: host.Bridge, MaxCPU: int(host.MaxCPU), MaxStoragePercent: int(host.MaxStoragePercent),
	}
	if host.MaxMemory != nil {
		config.MaxMemory = host.MaxMemory.Value()
	}

	for _, d := range host.Devices {
		if config.Devices == nil {
			config.Devices = map[string][]string{}
		}

		config.Devices[d.Name] = d.Addresses
	}

	return config
}
