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

var errNoIdentity = errors.New("the machine has no identity: it has not attested")

// identity is who the machine is, for as long as its agent lives: the agent renews the
// X.509-SVID before it ends, and gives a JWT-SVID whenever one is asked for.
type identity struct {
	client *workloadapi.Client
	source *workloadapi.X509Source
	agent  *agent
}

// identify waits for the machine's SVID; nil if ctx ends first. Where the agent has several,
// the one that is wanted is taken.
func (s *Service) identify(ctx context.Context, socket, want string) *identity {
	// The socket is there once the agent has attested. By default gRPC would wait longer after
	// each try to connect, and so for seconds after that.
	often := grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: retryPause, Multiplier: 1, MaxDelay: retryPause}, MinConnectTimeout: time.Second,
	})

	client, err := workloadapi.New(ctx, workloadapi.WithAddr("unix://"+socket), workloadapi.WithBackoffStrategy(steady{}),
		workloadapi.WithDialOptions(often))
	if err != nil {
		s.log.Warn("cannot reach spire-agent", "error", err.Error())

		return nil
	}

	pick := func(svids []*x509svid.SVID) *x509svid.SVID {
		for _, svid := range svids {
			if svid.ID.String() == want {
				return svid
			}
		}

		return svids[0]
	}

	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClient(client), workloadapi.WithDefaultX509SVIDPicker(pick))
	if err != nil {
		_ = client.Close()

		return nil
	}

	return &identity{client: client, source: source}
}

// name is the SPIFFE ID of the machine's SVID.
func (i *identity) name() string {
	svid, err := i.source.GetX509SVID()
	if err != nil {
		return ""
	}

	return svid.ID.String()
}

// svid is the machine's X.509-SVID as it is now. An agent that has ended since it attested was
// told so by its server: a join token is worth one attestation.
func (i *identity) svid() (*x509svid.SVID, error) {
	if i == nil {
		return nil, errNoIdentity
	}

	select {
	case <-i.agent.exited:
		return nil, failed(guest.ReasonAttestationRefused,
			"spire-agent has ended, and the machine's identity with it: %s", i.agent.lastWords())
	default:
	}

	svid, err := i.source.GetX509SVID()
	if err != nil {
		return nil, fmt.Errorf("look at the X.509-SVID: %w", err)
	}

	return svid, nil
}

// jwtTimeout bounds one call of the agent, which has to ask its server.
const jwtTimeout = 15 * time.Second

// jwt gives a fresh JWT-SVID for an audience.
func (i *identity) jwt(ctx context.Context, audience string) (string, error) {
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

// certificate is the X.509-SVID as the certificate of a TLS client, as it is at the moment of
// the handshake.
func (i *identity) certificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
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

// close ends the agent as well.
func (i *identity) close() {
	_ = i.source.Close()
	_ = i.client.Close()

	if i.agent != nil {
		i.agent.stop()
	}
}

// retryPause is how long an agent that does not answer yet is left alone.
const retryPause = 250 * time.Millisecond

// steady asks an agent again in even steps: it is on this machine, and is waited for.
type steady struct{}

func (steady) NewBackoff() workloadapi.Backoff { return steady{} }

func (steady) Next() time.Duration { return retryPause }

func (steady) Reset() {}
