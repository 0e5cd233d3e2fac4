// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"strings"

	agentv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/agent/v1"
	entryv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/entry/v1"
	"github.com/spiffe/spire-api-sdk/proto/spire/api/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hyperfleet/hyperfleet/identity"
)

const (
	// joinedAgentPath is the prefix before the token in the path of an agent that attested with a
	// join token (SPIRE's plugin nodeattestor join_token).
	joinedAgentPath = "/spire/agent/join_token/"
	// serverPath is the path of the server's SPIFFE ID. Node entries have it as their parent.
	serverPath = "/spire/server"
	// aliasSelector is the type of an alias's only selector. The value of the selector is the agent's
	// SPIFFE ID.
	aliasSelector = "spiffe_id"
	// nodeSuffix is the suffix of the id of a node entry.
	nodeSuffix = ".node"
	// joinTokenAttestor and devIDAttestor are the names of SPIRE's node attestors.
	joinTokenAttestor = "join_token"
	devIDAttestor     = "tpm_devid"
)

// entryIDPrefix returns the prefix of the ids of this operator's entries. The claim's UID follows it. The
// prefix contains a digest of the operator's UID, because the UID can contain characters that an entry
// id must not contain. SPIRE's datastore allows at most 255 letters, digits, "-", "_" and ".".
func (r *Registry) entryIDPrefix() string {
	sum := sha256.Sum256([]byte(r.options.OperatorUID))

	return "hyperfleet." + hex.EncodeToString(sum[:10]) + "."
}

func (r *Registry) entryID(uid string) string { return r.entryIDPrefix() + uid }

func (r *Registry) spiffeID(id identity.ID) *types.SPIFFEID {
	return &types.SPIFFEID{TrustDomain: r.trustDomain.Name(), Path: id.Path()}
}

// workloadEntry returns the entry that gives the machine's identity to the bootstrap service. SPIRE uses
// the first DNS name of an entry as the common name of its certificates. Vault's auth method cert
// identifies a client by the common name and rejects a certificate without one.
func (r *Registry) workloadEntry(machine identity.Machine) *types.Entry {
	return &types.Entry{
		Id: r.entryID(machine.ID.UID), SpiffeId: r.spiffeID(machine.ID), ParentId: r.spiffeID(machine.ID),
		Selectors: r.selectors, Hint: buildHint(machine), DnsNames: []string{machine.ID.UID},
	}
}

// nodeEntry returns the entry that matches the machine's agent by its device identity.
func (r *Registry) nodeEntry(machine identity.Machine) *types.Entry {
	return &types.Entry{
		Id: r.entryID(machine.ID.UID) + nodeSuffix, SpiffeId: r.spiffeID(machine.ID),
		ParentId:  &types.SPIFFEID{TrustDomain: r.trustDomain.Name(), Path: serverPath},
		Selectors: []*types.Selector{deviceSelector(machine.ID)}, Hint: buildHint(machine),
	}
}

// deviceSelector returns the selector for the common name of the device identity, which is the claim's
// UID.
func deviceSelector(id identity.ID) *types.Selector {
	return &types.Selector{Type: devIDAttestor, Value: "subject:cn:" + id.UID}
}

// maxHint is the maximum length of a hint in bytes. SPIRE's database column has 255 characters.
const maxHint = 255

// buildHint returns a text for people that describes the machine of the entry. It cuts the text off
// after maxHint bytes.
func buildHint(machine identity.Machine) string {
	parts := []string{"hyperfleet"}

	for _, part := range []struct{ name, value string }{
		{"template", machine.Template}, {"pool", machine.Pool}, {"workload", machine.Workload},
	} {
		if part.value != "" {
			parts = append(parts, part.name+"="+part.value)
		}
	}

	text := strings.Join(parts, " ")

	return text[:min(len(text), maxHint)]
}

// ensureEntry creates the entry if it does not exist. If this operator's entry has other selectors, as
// another version of the operator creates it, ensureEntry replaces it. If an entry of another owner has
// the same identity, the error is of kind Rejected.
func (r *Registry) ensureEntry(ctx context.Context, c clients, entry *types.Entry) error {
	canReplace, err := createEntry(ctx, c, entry)
	if !canReplace {
		return err // nil if the entry exists now
	}

	// Another version of the operator has created the entry with other selectors.
	if err := r.deleteEntries(ctx, c, entry.GetId()); err != nil {
		return err
	}

	_, err = createEntry(ctx, c, entry)

	return err
}

// createEntry creates the entry. If it fails, canReplace is true if an entry with the same ID may exist, so
// that the call can succeed after that entry is deleted.
func createEntry(ctx context.Context, c clients, entry *types.Entry) (canReplace bool, err error) {
	response, err := c.entries.BatchCreateEntry(ctx, &entryv1.BatchCreateEntryRequest{
		Entries: []*types.Entry{entry}, OutputMask: &types.EntryMask{},
	})
	if err != nil {
		return false, wrapError("create entry "+entry.GetId(), err)
	}

	if len(response.GetResults()) != 1 {
		return false, wrapError("create entry "+entry.GetId(), errResultCount)
	}

	result := response.GetResults()[0]
	code := codes.Code(uint32(result.GetStatus().GetCode())) //nolint:gosec // a code of gRPC

	switch {
	case code == codes.OK, code == codes.AlreadyExists && result.GetEntry().GetId() == entry.GetId():
		return false, nil
	case code == codes.AlreadyExists && result.GetEntry().GetId() != "":
		return false, &identity.Error{Kind: identity.Rejected, Err: fmt.Errorf(
			"create entry %s: entry %s of another owner gives the same identity %s: delete the other entry",
			entry.GetId(), result.GetEntry().GetId(), entry.GetSpiffeId().GetPath())}
	default:
		err := wrapError("create entry "+entry.GetId(), status.Error(code, result.GetStatus().GetMessage()))

		// The cause may be that an entry with this ID exists. Only InvalidArgument certainly has another cause.
		return code != codes.InvalidArgument, err
	}
}

// deleteEntries deletes entries by their ids. It ignores ids that do not exist.
func (r *Registry) deleteEntries(ctx context.Context, c clients, ids ...string) error {
	if len(ids) == 0 {
		return nil
	}

	response, err := c.entries.BatchDeleteEntry(ctx, &entryv1.BatchDeleteEntryRequest{Ids: ids})
	if err != nil {
		return wrapError("delete entries "+strings.Join(ids, ", "), err)
	}

	for _, result := range response.GetResults() {
		code := codes.Code(uint32(result.GetStatus().GetCode())) //nolint:gosec // a code of gRPC
		if code != codes.OK && code != codes.NotFound {
			return wrapError("delete entry "+result.GetId(), status.Error(code, result.GetStatus().GetMessage()))
		}
	}

	return nil
}

// listEntries returns all entries that match the filter. It reads them page by page.
func (r *Registry) listEntries(
	ctx context.Context, c clients, filter *entryv1.ListEntriesRequest_Filter,
) ([]*types.Entry, error) {
	var out []*types.Entry

	request := &entryv1.ListEntriesRequest{
		Filter: filter, PageSize: pageSize, OutputMask: &types.EntryMask{SpiffeId: true, ParentId: true, Selectors: true},
	}

	for {
		page, err := c.entries.ListEntries(ctx, request)
		if err != nil {
			return nil, wrapError("list entries of SPIRE server", err)
		}

		out = append(out, page.GetEntries()...)

		if page.GetNextPageToken() == "" {
			return out, nil
		}

		request.PageToken = page.GetNextPageToken()
	}
}

// listAliases returns the aliases of the machine. An alias gives the machine's SPIFFE ID to an agent that
// attested with a join token. The server creates an alias with each token and chooses its id.
func (r *Registry) listAliases(ctx context.Context, c clients, id identity.ID) ([]*types.Entry, error) {
	all, err := r.listEntries(ctx, c, &entryv1.ListEntriesRequest_Filter{BySpiffeId: r.spiffeID(id)})
	if err != nil {
		return nil, err
	}

	var out []*types.Entry

	for _, entry := range all {
		parent, selectors := entry.GetParentId(), entry.GetSelectors()
		uri := "spiffe://" + parent.GetTrustDomain() + parent.GetPath()

		if strings.HasPrefix(parent.GetPath(), joinedAgentPath) && len(selectors) == 1 &&
			selectors[0].GetType() == aliasSelector && selectors[0].GetValue() == uri {
			out = append(out, entry)
		}
	}

	return out, nil
}

// revokeTokens revokes all join tokens of the machine except keptToken, and evicts the agents that have used
// them. If keptToken is empty, it revokes all.
func (r *Registry) revokeTokens(ctx context.Context, c clients, id identity.ID, keptToken string) error {
	aliases, err := r.listAliases(ctx, c, id)
	if err != nil {
		return err
	}

	for _, alias := range aliases {
		token := strings.TrimPrefix(alias.GetParentId().GetPath(), joinedAgentPath)
		if token == keptToken {
			continue
		}

		wasUsed, err := r.evictAgent(ctx, c, alias.GetParentId())
		if err != nil {
			return err
		}

		if !wasUsed {
			// spendToken creates an agent, which is evicted too.
			if err := r.spendToken(ctx, c, token); err != nil {
				return err
			}

			if _, err := r.evictAgent(ctx, c, alias.GetParentId()); err != nil {
				return err
			}
		}

		// The alias is deleted last because only the alias contains the token.
		if err := r.deleteEntries(ctx, c, alias.GetId()); err != nil {
			return err
		}
	}

	return nil
}

// evictAgent deletes an agent. The server then rejects all its requests. evictAgent reports whether the
// agent existed.
func (r *Registry) evictAgent(ctx context.Context, c clients, agent *types.SPIFFEID) (existed bool, err error) {
	_, err = c.agents.DeleteAgent(ctx, &agentv1.DeleteAgentRequest{Id: agent})

	switch {
	case status.Code(err) == codes.NotFound:
		return false, nil
	case err != nil:
		return false, wrapError("evict agent", redactToken(err, agent))
	default:
		return true, nil
	}
}

// isAttested reports whether the agent exists, which means that it has attested, and is not banned.
func (r *Registry) isAttested(ctx context.Context, c clients, agent *types.SPIFFEID) (bool, error) {
	found, err := c.agents.GetAgent(ctx, &agentv1.GetAgentRequest{Id: agent, OutputMask: &types.AgentMask{Banned: true}})

	switch {
	case status.Code(err) == codes.NotFound:
		return false, nil
	case err != nil:
		return false, wrapError("get agent", redactToken(err, agent))
	default:
		return !found.GetBanned(), nil
	}
}

// listDeviceAgents returns the agents that attested with the machine's device identity. It reads them page
// by page.
func (r *Registry) listDeviceAgents(ctx context.Context, c clients, id identity.ID) ([]*types.Agent, error) {
	var out []*types.Agent

	request := &agentv1.ListAgentsRequest{
		Filter: &agentv1.ListAgentsRequest_Filter{
			ByAttestationType: devIDAttestor,
			BySelectorMatch: &types.SelectorMatch{
				Selectors: []*types.Selector{deviceSelector(id)}, Match: types.SelectorMatch_MATCH_SUPERSET,
			},
		},
		OutputMask: &types.AgentMask{}, PageSize: pageSize,
	}

	for {
		page, err := c.agents.ListAgents(ctx, request)
		if err != nil {
			return nil, wrapError("list agents of machine "+id.Path(), err)
		}

		out = append(out, page.GetAgents()...)

		if page.GetNextPageToken() == "" {
			return out, nil
		}

		request.PageToken = page.GetNextPageToken()
	}
}

// spendToken makes a join token unusable by attesting an agent with it. If the server rejects the token
// because it was used or has expired, spendToken returns nil. Nobody can use the certificate that the
// server issues, because spendToken does not keep its private key.
func (r *Registry) spendToken(ctx context.Context, c clients, token string) error {
	request, err := newCertificateRequest()
	if err != nil {
		return wrapError("spend join token", err)
	}

	ctx, cancel := context.WithTimeout(ctx, r.options.Timeout)
	defer cancel()

	stream, err := c.agents.AttestAgent(ctx)
	if err != nil {
		return wrapError("spend join token", err)
	}

	// Recv returns the error of a failed Send, too.
	_ = stream.Send(&agentv1.AttestAgentRequest{Step: &agentv1.AttestAgentRequest_Params_{
		Params: &agentv1.AttestAgentRequest_Params{
			Data:   &types.AttestationData{Type: joinTokenAttestor, Payload: []byte(token)},
			Params: &agentv1.AgentX509SVIDParams{Csr: request},
		},
	}})
	_ = stream.CloseSend()

	if _, err := stream.Recv(); err != nil && status.Code(err) != codes.InvalidArgument {
		return wrapError("spend join token", redactToken(err, &types.SPIFFEID{Path: joinedAgentPath + token}))
	}

	return nil
}

// newCertificateRequest returns a certificate request for a new private key, which it does not keep.
func newCertificateRequest() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate private key: %w", err)
	}

	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("create certificate request: %w", err)
	}

	return request, nil
}
