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
	// agentPath is before the token in the path of an agent that attested with one (SPIRE's
	// plugin nodeattestor join_token).
	agentPath = "/spire/agent/join_token/"
	// serverPath is the server's own, which node entries have as their parent.
	serverPath = "/spire/server"
	// aliasSelector is the type of an alias's one selector: the agent's SPIFFE ID.
	aliasSelector = "spiffe_id"
	// nodeSuffix ends the id of a node entry.
	nodeSuffix = ".node"
	// joinToken and deviceID are names of node attestors.
	joinToken = "join_token"
	deviceID  = "tpm_devid"
)

// prefix is before the claim's UID in the ids of our entries. Operators are told apart by a
// hash, for their UIDs may hold what an entry's id may not (letters, digits, "-", "_" and
// "." in at most 255 characters, as SPIRE's datastore checks).
func (r *Registry) prefix() string {
	sum := sha256.Sum256([]byte(r.options.OperatorUID))

	return "hyperfleet." + hex.EncodeToString(sum[:10]) + "."
}

func (r *Registry) entryID(uid string) string { return r.prefix() + uid }

func (r *Registry) id(id identity.ID) *types.SPIFFEID {
	return &types.SPIFFEID{TrustDomain: r.trustDomain.Name(), Path: id.Path()}
}

// workloadEntry gives the machine's identity to the bootstrap service. The first of an entry's
// DNS names becomes the common name of its certificates, which have none otherwise; Vault's
// method cert knows by it who logs in, and refuses whoever has none.
func (r *Registry) workloadEntry(machine identity.Machine) *types.Entry {
	return &types.Entry{
		Id: r.entryID(machine.ID.UID), SpiffeId: r.id(machine.ID), ParentId: r.id(machine.ID),
		Selectors: r.selectors, Hint: hint(machine), DnsNames: []string{machine.ID.UID},
	}
}

// nodeEntry knows the machine's agent by its device identity.
func (r *Registry) nodeEntry(machine identity.Machine) *types.Entry {
	return &types.Entry{
		Id: r.entryID(machine.ID.UID) + nodeSuffix, SpiffeId: r.id(machine.ID),
		ParentId:  &types.SPIFFEID{TrustDomain: r.trustDomain.Name(), Path: serverPath},
		Selectors: []*types.Selector{deviceSelector(machine.ID)}, Hint: hint(machine),
	}
}

// deviceSelector is the common name of the device identity: the claim's UID.
func deviceSelector(id identity.ID) *types.Selector {
	return &types.Selector{Type: deviceID, Value: "subject:cn:" + id.UID}
}

// maxHint bounds a hint; SPIRE's column has 255 characters.
const maxHint = 255

// hint says for people what the entry is of.
func hint(machine identity.Machine) string {
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

// ensure makes an entry, unless it is there.
func (r *Registry) ensure(ctx context.Context, c clients, entry *types.Entry) error {
	for again := true; ; again = false {
		got, err := c.entries.BatchCreateEntry(ctx, &entryv1.BatchCreateEntryRequest{
			Entries: []*types.Entry{entry}, OutputMask: &types.EntryMask{},
		})
		if err != nil {
			return failed("make entry "+entry.GetId(), err)
		}

		if len(got.GetResults()) != 1 {
			return failed("make entry "+entry.GetId(), errAnswer)
		}

		result := got.GetResults()[0]
		code := codes.Code(uint32(result.GetStatus().GetCode())) //nolint:gosec // a code of gRPC

		switch {
		case code == codes.OK, code == codes.AlreadyExists && result.GetEntry().GetId() == entry.GetId():
			return nil
		case code == codes.AlreadyExists && result.GetEntry().GetId() != "":
			return &identity.Error{Kind: identity.Rejected, Err: fmt.Errorf(
				"make entry %s: entry %s of somebody else gives the same identity %s: delete that one",
				entry.GetId(), result.GetEntry().GetId(), entry.GetSpiffeId().GetPath())}
		case code == codes.InvalidArgument || !again:
			return failed("make entry "+entry.GetId(), status.Error(code, result.GetStatus().GetMessage()))
		}

		// One of ours with other selectors, of another version of the operator.
		if err := r.drop(ctx, c, entry.GetId()); err != nil {
			return err
		}
	}
}

// drop removes entries by their ids; those that are not there are none.
func (r *Registry) drop(ctx context.Context, c clients, ids ...string) error {
	if len(ids) == 0 {
		return nil
	}

	got, err := c.entries.BatchDeleteEntry(ctx, &entryv1.BatchDeleteEntryRequest{Ids: ids})
	if err != nil {
		return failed("delete entries "+strings.Join(ids, ", "), err)
	}

	for _, result := range got.GetResults() {
		code := codes.Code(uint32(result.GetStatus().GetCode())) //nolint:gosec // a code of gRPC
		if code != codes.OK && code != codes.NotFound {
			return failed("delete entry "+result.GetId(), status.Error(code, result.GetStatus().GetMessage()))
		}
	}

	return nil
}

// entries lists entries, page by page.
func (r *Registry) entries(ctx context.Context, c clients, filter *entryv1.ListEntriesRequest_Filter) ([]*types.Entry, error) {
	var out []*types.Entry

	request := &entryv1.ListEntriesRequest{
		Filter: filter, PageSize: pageSize, OutputMask: &types.EntryMask{SpiffeId: true, ParentId: true, Selectors: true},
	}

	for {
		page, err := c.entries.ListEntries(ctx, request)
		if err != nil {
			return nil, failed("list entries of SPIRE server", err)
		}

		out = append(out, page.GetEntries()...)

		if page.GetNextPageToken() == "" {
			return out, nil
		}

		request.PageToken = page.GetNextPageToken()
	}
}

// aliases are the entries by which agents with a join token are the machine. The server made
// them, under ids of its own.
func (r *Registry) aliases(ctx context.Context, c clients, id identity.ID) ([]*types.Entry, error) {
	all, err := r.entries(ctx, c, &entryv1.ListEntriesRequest_Filter{BySpiffeId: r.id(id)})
	if err != nil {
		return nil, err
	}

	var out []*types.Entry

	for _, entry := range all {
		parent, selectors := entry.GetParentId(), entry.GetSelectors()
		uri := "spiffe://" + parent.GetTrustDomain() + parent.GetPath()

		if strings.HasPrefix(parent.GetPath(), agentPath) && len(selectors) == 1 &&
			selectors[0].GetType() == aliasSelector && selectors[0].GetValue() == uri {
			out = append(out, entry)
		}
	}

	return out, nil
}

// revoke ends all the machine's join tokens but one, with the agents that have used them.
func (r *Registry) revoke(ctx context.Context, c clients, id identity.ID, keep string) error {
	aliases, err := r.aliases(ctx, c, id)
	if err != nil {
		return err
	}

	for _, alias := range aliases {
		token := strings.TrimPrefix(alias.GetParentId().GetPath(), agentPath)
		if token == keep {
			continue
		}

		used, err := r.evict(ctx, c, alias.GetParentId())
		if err != nil {
			return err
		}

		if !used {
			if err := r.spend(ctx, c, token); err != nil {
				return err
			}

			if _, err := r.evict(ctx, c, alias.GetParentId()); err != nil {
				return err
			}
		}

		// The alias goes last: it alone knows the token.
		if err := r.drop(ctx, c, alias.GetId()); err != nil {
			return err
		}
	}

	return nil
}

// evict removes an agent: whatever it asks for from now on is refused. It tells whether there
// was one.
func (r *Registry) evict(ctx context.Context, c clients, agent *types.SPIFFEID) (bool, error) {
	_, err := c.agents.DeleteAgent(ctx, &agentv1.DeleteAgentRequest{Id: agent})

	switch {
	case status.Code(err) == codes.NotFound:
		return false, nil
	case err != nil:
		return false, failed("evict agent", withoutToken(err, agent))
	default:
		return true, nil
	}
}

// known tells whether an agent has attested.
func (r *Registry) known(ctx context.Context, c clients, agent *types.SPIFFEID) (bool, error) {
	got, err := c.agents.GetAgent(ctx, &agentv1.GetAgentRequest{Id: agent, OutputMask: &types.AgentMask{Banned: true}})

	switch {
	case status.Code(err) == codes.NotFound:
		return false, nil
	case err != nil:
		return false, failed("get agent", withoutToken(err, agent))
	default:
		return !got.GetBanned(), nil
	}
}

// devices are the agents of the machine's device identity.
func (r *Registry) devices(ctx context.Context, c clients, id identity.ID) ([]*types.Agent, error) {
	got, err := c.agents.ListAgents(ctx, &agentv1.ListAgentsRequest{
		Filter: &agentv1.ListAgentsRequest_Filter{
			ByAttestationType: deviceID,
			BySelectorMatch: &types.SelectorMatch{
				Selectors: []*types.Selector{deviceSelector(id)}, Match: types.SelectorMatch_MATCH_SUPERSET,
			},
		},
		OutputMask: &types.AgentMask{}, PageSize: pageSize,
	})
	if err != nil {
		return nil, failed("list agents of machine "+id.Path(), err)
	}

	return got.GetAgents(), nil
}

// spend uses a join token up. That the server refuses it, for it was used or has expired, is
// as good. The certificate that comes of it is for a key that nobody keeps.
func (r *Registry) spend(ctx context.Context, c clients, token string) error {
	request, err := certificateRequest()
	if err != nil {
		return failed("use join token up", err)
	}

	ctx, cancel := context.WithTimeout(ctx, r.options.Timeout)
	defer cancel()

	stream, err := c.agents.AttestAgent(ctx)
	if err != nil {
		return failed("use join token up", err)
	}

	// What is wrong with sending, receiving tells.
	_ = stream.Send(&agentv1.AttestAgentRequest{Step: &agentv1.AttestAgentRequest_Params_{
		Params: &agentv1.AttestAgentRequest_Params{
			Data:   &types.AttestationData{Type: joinToken, Payload: []byte(token)},
			Params: &agentv1.AgentX509SVIDParams{Csr: request},
		},
	}})
	_ = stream.CloseSend()

	if _, err := stream.Recv(); err != nil && status.Code(err) != codes.InvalidArgument {
		return failed("use join token up", withoutToken(err, &types.SPIFFEID{Path: agentPath + token}))
	}

	return nil
}

// certificateRequest is one for a key that is thrown away.
func certificateRequest() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}

	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}

	return request, nil
}
