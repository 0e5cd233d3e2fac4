// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

var errNoIdentity = errors.New("the machine has no identity because it has not attested")

// identity gives access to the machine's SVIDs while its agent runs. The agent renews the X.509-SVID before
// it expires, and issues a JWT-SVID on request.
type identity struct {
	client *workloadapi.Client
	source *workloadapi.X509Source
	agent  *agent
}

// fetchIdentity waits for the machine's SVID. It returns nil if ctx is done first, or if it cannot create a
// client of the workload API. If the agent has several SVIDs, it selects the one with the given SPIFFE ID, or
// else the first.
func (s *Service) fetchIdentity(ctx context.Context, socket, spiffeID string) *identity {
	// The socket exists only after the agent has attested. By default, gRPC increases its delay after each
	// failed connection, so it would find the socket seconds late.
	connectParams := grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: agentRetryInterval, Multiplier: 1, MaxDelay: agentRetryInterval},
		MinConnectTimeout: time.Second,
	})

	client, err := workloadapi.New(ctx, workloadapi.WithAddr("unix://"+socket), workloadapi.WithBackoffStrategy(constantBackoff{}),
		workloadapi.WithDialOptions(connectParams))
	if err != nil {
		s.log.Warn("cannot reach spire-agent", "error", err.Error())

		return nil
	}

	pickSVID := func(svids []*x509svid.SVID) *x509svid.SVID {
		for _, svid := range svids {
			if svid.ID.String() == spiffeID {
				return svid
			}
		}

		return svids[0]
	}

	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClient(client), workloadapi.WithDefaultX509SVIDPicker(pickSVID))
	if err != nil {
		_ = client.Close()

		return nil
	}

	return &identity{client: client, source: source}
}

// spiffeID returns the SPIFFE ID of the machine's SVID, and the empty string if the SVID cannot be read.
func (i *identity) spiffeID() string {
	svid, err := i.source.GetX509SVID()
	if err != nil {
		return ""
	}

	return svid.ID.String()
}

// svid returns the machine's current X.509-SVID. If the agent has exited after the attestation, the server
// has evicted it. The agent cannot attest again, because a join token is valid for one attestation only, so
// svid then returns a terminal error.
func (i *identity) svid() (*x509svid.SVID, error) {
	if i == nil {
		return nil, errNoIdentity
	}

	select {
	case <-i.agent.exited:
		return nil, newFailure(guest.ReasonAttestationRefused,
			"spire-agent has exited, so the machine has no identity any more: %s", i.agent.lastMessages())
	default:
	}

	svid, err := i.source.GetX509SVID()
	if err != nil {
		return nil, fmt.Errorf("get X.509-SVID: %w", err)
	}

	return svid, nil
}

// jwtTimeout limits one call to the agent, which has to call its server.
const jwtTimeout = 15 * time.Second

// fetchJWT returns a new JWT-SVID for the audience.
func (i *identity) fetchJWT(ctx context.Context, audience string) (string, error) {
	svid, err := i.svid()
	if err != nil {
		return "", err
	}

	ctx, cancel := context.WithTimeout(ctx, jwtTimeout)
	defer cancel()

	token, err := i.client.FetchJWTSVID(ctx, jwtsvid.Params{Audience: audience, Subject: svid.ID})
	if err != nil {
		return "", fmt.Errorf("get a JWT-SVID for %s from spire-agent: %w", audience, err)
	}

	return token.Marshal(), nil
}

// clientCertificate returns the X.509-SVID as the certificate of a TLS client. TLS calls it at each
// handshake, so it always returns the current SVID.
func (i *identity) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	svid, err := i.svid()
	if err != nil {
		return nil, err
	}

	out := &tls.Certificate{PrivateKey: svid.PrivateKey, Leaf: svid.Certificates[0]}
	for _, c := range svid.Certificates {
		out.Certificate = append(out.Certificate, c.Raw)
	}

	return out, nil
}

// close closes the connections to the agent and stops the agent.
func (i *identity) close() {
	_ = i.source.Close()
	_ = i.client.Close()

	if i.agent != nil {
		i.agent.stop()
	}
}

// agentRetryInterval is the time between two attempts to connect to the agent.
const agentRetryInterval = 250 * time.Millisecond

// constantBackoff retries at a constant interval. The agent runs on this machine and the service waits for
// it, so a growing interval would only lose time.
type constantBackoff struct{}

func (constantBackoff) NewBackoff() workloadapi.Backoff { return constantBackoff{} }

func (constantBackoff) Next() time.Duration { return agentRetryInterval }

func (constantBackoff) Reset() {}
