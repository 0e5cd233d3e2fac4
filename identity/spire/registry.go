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
	// defaultTTL of a join token: the document's hour.
	defaultTTL = time.Hour
	// defaultTimeout of one call.
	defaultTimeout = 10 * time.Second
	// pageSize of listings.
	pageSize = 500
)

// Options say which server, and who asks.
type Options struct {
	// Address of the API: unix:///PATH of the admin socket, or host:port.
	Address string
	// WorkloadAPI is the socket of the operator's own agent, unix:///PATH; for host:port.
	WorkloadAPI string
	// TrustDomain without spiffe://.
	TrustDomain string
	// MachineAddress of the server as machines see it, host:port.
	MachineAddress string
	// Timeout of one call; default 10 seconds.
	Timeout time.Duration
	// OperatorUID tells our entries from those of other operators.
	OperatorUID string
	// Selectors of the program that gets a machine's identity, TYPE:VALUE. Default: the
	// bootstrap service, as root.
	Selectors []string
	// Clock ages the server's keys; nil means the real one.
	Clock clock.PassiveClock
	// Observe is told of each call; may be nil.
	Observe func(operation string, took time.Duration, err error)
}

// DefaultSelectors are those of the bootstrap service, run by root (SPIRE's plugin
// workloadattestor unix; unix:path needs its discover_workload_path).
func DefaultSelectors() []string { return []string{"unix:uid:0", "unix:path:" + guest.ServicePath} }

// Registry is an identity.Registry on a SPIRE server.
type Registry struct {
	options     Options
	trustDomain spiffeid.TrustDomain
	selectors   []*types.Selector
	link        *link
	keys        keys
}

var _ identity.Registry = (*Registry)(nil)

// New makes a registry. It connects when it is first used.
func New(options Options) (*Registry, error) {
	trustDomain, err := spiffeid.TrustDomainFromString(options.TrustDomain)
	if err != nil {
		return nil, fmt.Errorf("read trust domain %q: %w: it is a name such as hyperfleet.io", options.TrustDomain, err)
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
		return nil, fmt.Errorf("read address of SPIRE server for machines: %w: it is HOST:PORT", err)
	}

	r := &Registry{options: options, trustDomain: trustDomain, link: &link{options: options, trustDomain: trustDomain}}

	for _, text := range options.Selectors {
		kind, value, ok := strings.Cut(text, ":")
		if !ok || kind == "" || value == "" {
			return nil, fmt.Errorf("read selector %q: %w", text, errSelector)
		}

		r.selectors = append(r.selectors, &types.Selector{Type: kind, Value: value})
	}

	return r, r.link.check()
}

// Close ends the connection.
func (r *Registry) Close() error { return r.link.close() }

// TrustDomain of all identities.
func (r *Registry) TrustDomain() string { return r.trustDomain.Name() }

// clients are those of one connection.
type clients struct {
	agents  agentv1.AgentClient
	bundles bundlev1.BundleClient
	entries entryv1.EntryClient
}

// clients connects, if that is not done yet.
func (r *Registry) clients(ctx context.Context) (clients, error) {
	conn, err := r.link.connect(ctx)
	if err != nil {
		return clients{}, err
	}

	return of(conn), nil
}

func of(conn *grpc.ClientConn) clients {
	return clients{
		agents: agentv1.NewAgentClient(conn), bundles: bundlev1.NewBundleClient(conn), entries: entryv1.NewEntryClient(conn),
	}
}

// Check asks for the bundle, which tells the trust domain, and for one entry, which only an
// admin gets.
func (r *Registry) Check(ctx context.Context) error {
	_, err := r.bundle(ctx)
	if err != nil {
		return err
	}

	c, err := r.clients(ctx)
	if err != nil {
		return err
	}

	_, err = c.entries.ListEntries(ctx, &entryv1.ListEntriesRequest{OutputMask: &types.EntryMask{}, PageSize: 1})
	if err != nil {
		return failed("list entries of SPIRE server", err)
	}

	return nil
}

// bundle gets the server's keys, of the right trust domain.
func (r *Registry) bundle(ctx context.Context) (*types.Bundle, error) {
	c, err := r.clients(ctx)
	if err != nil {
		return nil, err
	}

	bundle, err := c.bundles.GetBundle(ctx, &bundlev1.GetBundleRequest{})
	if err != nil {
		return nil, failed("get bundle of SPIRE server", err)
	}

	if got := bundle.GetTrustDomain(); got != r.trustDomain.Name() {
		return nil, mismatch(r.trustDomain.Name(), got)
	}

	return bundle, nil
}

// Register makes a machine known.
func (r *Registry) Register(ctx context.Context, machine identity.Machine) (identity.Attestation, error) {
	bundle, err := r.bundle(ctx)
	if err != nil {
		return identity.Attestation{}, err
	}

	c, err := r.clients(ctx)
	if err != nil {
		return identity.Attestation{}, err
	}

	if err := r.ensure(ctx, c, r.workloadEntry(machine)); err != nil {
		return identity.Attestation{}, err
	}

	out := identity.Attestation{ServerAddress: r.options.MachineAddress, TrustBundle: authorities(bundle)}

	switch machine.Method {
	case identity.JoinToken:
		out.JoinToken, err = r.token(ctx, c, machine)
	case identity.TPM:
		err = r.ensure(ctx, c, r.nodeEntry(machine))
	default:
		err = &identity.Error{Kind: identity.Rejected, Err: fmt.Errorf("register machine %s: %w: %q",
			machine.ID.Path(), errMethod, machine.Method)}
	}

	if err != nil {
		return identity.Attestation{}, err
	}

	return out, nil
}

// token makes a join token that is the machine's only one. Those of earlier calls are of no
// use before it is made; another look after it finds the one whose making was given up.
func (r *Registry) token(ctx context.Context, c clients, machine identity.Machine) (string, error) {
	if err := r.revoke(ctx, c, machine.ID, ""); err != nil {
		return "", err
	}

	ttl := machine.TTL
	if ttl <= 0 {
		ttl = defaultTTL
	}

	token, err := c.agents.CreateJoinToken(ctx, &agentv1.CreateJoinTokenRequest{
		Ttl: int32(min(max(ttl/time.Second, 1), maxTTL)), AgentId: r.id(machine.ID),
	})
	if err != nil {
		return "", failed("make join token of machine "+machine.ID.Path(), err)
	}

	if err := r.revoke(ctx, c, machine.ID, token.GetValue()); err != nil {
		return "", err
	}

	return token.GetValue(), nil
}

// maxTTL of a join token in seconds: a month.
const maxTTL = 31 * 24 * 60 * 60

// Attested says whether the machine has an agent that the server knows.
func (r *Registry) Attested(ctx context.Context, id identity.ID) (bool, error) {
	c, err := r.clients(ctx)
	if err != nil {
		return false, err
	}

	aliases, err := r.aliases(ctx, c, id)
	if err != nil {
		return false, err
	}

	for _, alias := range aliases {
		known, err := r.known(ctx, c, alias.GetParentId())
		if known || err != nil {
			return known, err
		}
	}

	agents, err := r.devices(ctx, c, id)

	return len(agents) > 0, err
}

// Remove evicts the machine's agents, and removes its entries, the workload entry last: with
// it the registry would forget what is left.
func (r *Registry) Remove(ctx context.Context, id identity.ID) error {
	c, err := r.clients(ctx)
	if err != nil {
		return err
	}

	if err := r.revoke(ctx, c, id, ""); err != nil {
		return err
	}

	// A device identity attests again for as long as the machine runs. Without the entry that
	// is worth nothing.
	if err := r.drop(ctx, c, r.entryID(id.UID)+nodeSuffix); err != nil {
		return err
	}

	agents, err := r.devices(ctx, c, id)
	if err != nil {
		return err
	}

	for _, agent := range agents {
		if _, err := r.evict(ctx, c, agent.GetId()); err != nil {
			return err
		}
	}

	return r.drop(ctx, c, r.entryID(id.UID))
}

// List gives whose workload entries are there.
func (r *Registry) List(ctx context.Context) ([]identity.ID, error) {
	c, err := r.clients(ctx)
	if err != nil {
		return nil, err
	}

	entries, err := r.entries(ctx, c, &entryv1.ListEntriesRequest_Filter{BySelectors: &types.SelectorMatch{
		Selectors: r.selectors, Match: types.SelectorMatch_MATCH_EXACT,
	}})
	if err != nil {
		return nil, err
	}

	var out []identity.ID

	for _, entry := range entries {
		uid, ours := strings.CutPrefix(entry.GetId(), r.prefix())

		id, err := identity.ParsePath(entry.GetSpiffeId().GetPath())
		if ours && err == nil && id.UID == uid {
			out = append(out, id)
		}
	}

	slices.SortFunc(out, func(a, b identity.ID) int { return strings.Compare(a.Path(), b.Path()) })

	return out, nil
}

// authorities are the keys that verify the server, in PEM.
func authorities(bundle *types.Bundle) string {
	var out strings.Builder

	for _, authority := range bundle.GetX509Authorities() {
		if !authority.GetTainted() {
			out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.GetAsn1()}))
		}
	}

	return out.String()
}
