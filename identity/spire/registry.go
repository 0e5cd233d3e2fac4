// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire

import (
	"context"
	"encoding/pem"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	agentv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/agent/v1"
	bundlev1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/bundle/v1"
	entryv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/entry/v1"
	"github.com/spiffe/spire-api-sdk/proto/spire/api/types"
	"google.golang.org/grpc"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/identity"
)

const (
	// defaultTTL of a join token, as in the operator's document.
	defaultTTL = time.Hour
	// defaultTimeout of one call.
	defaultTimeout = 10 * time.Second
	// pageSize of list requests.
	pageSize = 500
)

// Options are the settings of a Registry.
type Options struct {
	// Address of the server's API. It is unix:///PATH of the admin socket, or host:port.
	Address string
	// WorkloadAPI is unix:///PATH of the operator's own agent's socket. An Address host:port
	// needs it.
	WorkloadAPI string
	// TrustDomain is the trust domain without spiffe://.
	TrustDomain string
	// MachineAddress is the host:port at which machines reach the server.
	MachineAddress string
	// Timeout of one call. Default: 10 seconds.
	Timeout time.Duration
	// OperatorUID distinguishes the entries of this operator from the entries of others.
	OperatorUID string
	// Selectors of the program that gets a machine's identity, as TYPE:VALUE. Default: the
	// bootstrap service that runs as root.
	Selectors []string
	// Clock determines the age of the server's keys. Nil means the real clock.
	Clock clock.PassiveClock
	// Observe is called after each call. It may be nil.
	Observe func(operation string, took time.Duration, err error)
}

// DefaultSelectors returns the selectors of the bootstrap service that runs as root. They are selectors
// of SPIRE's plugin workloadattestor unix. The selector unix:path needs the plugin's option
// discover_workload_path.
func DefaultSelectors() []string { return []string{"unix:uid:0", "unix:path:" + guest.ServicePath} }

// Registry is the identity.Registry for a SPIRE server.
type Registry struct {
	options     Options
	trustDomain spiffeid.TrustDomain
	selectors   []*types.Selector
	connection  *connection
	keys        keyCache
}

var _ identity.Registry = (*Registry)(nil)

// New validates the options and returns a registry. The registry connects to the server when it is first used.
func New(options Options) (*Registry, error) {
	trustDomain, err := spiffeid.TrustDomainFromString(options.TrustDomain)
	if err != nil {
		return nil, fmt.Errorf("parse trust domain %q: %w: use a name such as hyperfleet.io", options.TrustDomain, err)
	}

	if options.Timeout <= 0 {
		options.Timeout = defaultTimeout
	}

	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}

	if len(options.Selectors) == 0 {
		options.Selectors = DefaultSelectors()
	}

	if _, _, err := net.SplitHostPort(options.MachineAddress); err != nil {
		return nil, fmt.Errorf("parse address of SPIRE server for machines: %w: use HOST:PORT", err)
	}

	r := &Registry{options: options, trustDomain: trustDomain, connection: &connection{options: options, trustDomain: trustDomain}}

	for _, text := range options.Selectors {
		kind, value, ok := strings.Cut(text, ":")
		if !ok || kind == "" || value == "" {
			return nil, fmt.Errorf("parse selector %q: %w", text, errSelector)
		}

		r.selectors = append(r.selectors, &types.Selector{Type: kind, Value: value})
	}

	return r, r.connection.validate()
}

// Close closes the connection.
func (r *Registry) Close() error { return r.connection.close() }

// TrustDomain returns the trust domain of all identities.
func (r *Registry) TrustDomain() string { return r.trustDomain.Name() }

// clients are the API clients of one connection.
type clients struct {
	agents  agentv1.AgentClient
	bundles bundlev1.BundleClient
	entries entryv1.EntryClient
}

// connect returns the API clients, and connects to the server if necessary.
func (r *Registry) connect(ctx context.Context) (clients, error) {
	conn, err := r.connection.connect(ctx)
	if err != nil {
		return clients{}, err
	}

	return newClients(conn), nil
}

func newClients(conn *grpc.ClientConn) clients {
	return clients{
		agents: agentv1.NewAgentClient(conn), bundles: bundlev1.NewBundleClient(conn), entries: entryv1.NewEntryClient(conn),
	}
}

// Check verifies the trust domain by the server's bundle. It also requests one entry, which the server
// returns only to an admin.
func (r *Registry) Check(ctx context.Context) error {
	_, err := r.fetchBundle(ctx)
	if err != nil {
		return err
	}

	c, err := r.connect(ctx)
	if err != nil {
		return err
	}

	_, err = c.entries.ListEntries(ctx, &entryv1.ListEntriesRequest{OutputMask: &types.EntryMask{}, PageSize: 1})
	if err != nil {
		return wrapError("list entries of SPIRE server", err)
	}

	return nil
}

// fetchBundle returns the server's bundle. The error is of kind TrustDomainMismatch if the bundle
// belongs to another trust domain.
func (r *Registry) fetchBundle(ctx context.Context) (*types.Bundle, error) {
	c, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}

	bundle, err := c.bundles.GetBundle(ctx, &bundlev1.GetBundleRequest{})
	if err != nil {
		return nil, wrapError("get bundle of SPIRE server", err)
	}

	if got := bundle.GetTrustDomain(); got != r.trustDomain.Name() {
		return nil, newMismatchError(r.trustDomain.Name(), got)
	}

	return bundle, nil
}

// Register registers the machine; see identity.Registry.
func (r *Registry) Register(ctx context.Context, machine identity.Machine) (identity.Attestation, error) {
	bundle, err := r.fetchBundle(ctx)
	if err != nil {
		return identity.Attestation{}, err
	}

	c, err := r.connect(ctx)
	if err != nil {
		return identity.Attestation{}, err
	}

	if err := r.ensureEntry(ctx, c, r.workloadEntry(machine)); err != nil {
		return identity.Attestation{}, err
	}

	out := identity.Attestation{ServerAddress: r.options.MachineAddress, TrustBundle: encodeAuthorities(bundle)}

	switch machine.Method {
	case identity.JoinToken:
		out.JoinToken, err = r.createToken(ctx, c, machine)
	case identity.TPM:
		err = r.ensureEntry(ctx, c, r.nodeEntry(machine))
	default:
		err = &identity.Error{Kind: identity.Rejected, Err: fmt.Errorf("register machine %s: %w: %q",
			machine.ID.Path(), errMethod, machine.Method)}
	}

	if err != nil {
		return identity.Attestation{}, err
	}

	return out, nil
}

// createToken creates a join token and ensures that the machine has no other valid one. It revokes the
// tokens of earlier calls before it creates the token. Afterwards it revokes again, to find a token
// that an earlier attempt created although its call failed.
func (r *Registry) createToken(ctx context.Context, c clients, machine identity.Machine) (string, error) {
	if err := r.revokeTokens(ctx, c, machine.ID, ""); err != nil {
		return "", err
	}

	ttl := machine.TTL
	if ttl <= 0 {
		ttl = defaultTTL
	}

	token, err := c.agents.CreateJoinToken(ctx, &agentv1.CreateJoinTokenRequest{
		Ttl: int32(min(max(ttl/time.Second, 1), maxTTL)), AgentId: r.spiffeID(machine.ID),
	})
	if err != nil {
		return "", wrapError("create join token of machine "+machine.ID.Path(), err)
	}

	if err := r.revokeTokens(ctx, c, machine.ID, token.GetValue()); err != nil {
		return "", err
	}

	return token.GetValue(), nil
}

// maxTTL is the maximum TTL of a join token in seconds: 31 days.
const maxTTL = 31 * 24 * 60 * 60

// HasAttested reports whether the server has an agent of the machine that is not banned.
func (r *Registry) HasAttested(ctx context.Context, id identity.ID) (bool, error) {
	c, err := r.connect(ctx)
	if err != nil {
		return false, err
	}

	aliases, err := r.listAliases(ctx, c, id)
	if err != nil {
		return false, err
	}

	for _, alias := range aliases {
		hasAttested, err := r.isAttested(ctx, c, alias.GetParentId())
		if hasAttested || err != nil {
			return hasAttested, err
		}
	}

	agents, err := r.listDeviceAgents(ctx, c, id)

	return len(agents) > 0, err
}

// Unregister evicts the machine's agents and deletes its entries. It deletes the workload entry last,
// because List finds a machine only by this entry.
func (r *Registry) Unregister(ctx context.Context, id identity.ID) error {
	c, err := r.connect(ctx)
	if err != nil {
		return err
	}

	if err := r.revokeTokens(ctx, c, id, ""); err != nil {
		return err
	}

	// The machine can attest with its device identity again while it runs. Without the node entry,
	// it gets no identity.
	if err := r.deleteEntries(ctx, c, r.entryID(id.UID)+nodeSuffix); err != nil {
		return err
	}

	agents, err := r.listDeviceAgents(ctx, c, id)
	if err != nil {
		return err
	}

	for _, agent := range agents {
		if _, err := r.evictAgent(ctx, c, agent.GetId()); err != nil {
			return err
		}
	}

	return r.deleteEntries(ctx, c, r.entryID(id.UID))
}

// List returns the identities of the machines that have a workload entry of this operator. It sorts
// them by path.
func (r *Registry) List(ctx context.Context) ([]identity.ID, error) {
	c, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}

	entries, err := r.listEntries(ctx, c, &entryv1.ListEntriesRequest_Filter{BySelectors: &types.SelectorMatch{
		Selectors: r.selectors, Match: types.SelectorMatch_MATCH_EXACT,
	}})
	if err != nil {
		return nil, err
	}

	var out []identity.ID

	for _, entry := range entries {
		uid, isOurs := strings.CutPrefix(entry.GetId(), r.entryIDPrefix())

		id, err := identity.ParsePath(entry.GetSpiffeId().GetPath())
		if isOurs && err == nil && id.UID == uid {
			out = append(out, id)
		}
	}

	slices.SortFunc(out, func(a, b identity.ID) int { return strings.Compare(a.Path(), b.Path()) })

	return out, nil
}

// encodeAuthorities returns the CA certificates of the bundle that verify the server, in PEM. It leaves
// out tainted ones.
func encodeAuthorities(bundle *types.Bundle) string {
	var out strings.Builder

	for _, authority := range bundle.GetX509Authorities() {
		if !authority.GetTainted() {
			out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.GetAsn1()}))
		}
	}

	return out.String()
}
