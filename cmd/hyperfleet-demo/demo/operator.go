// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"sigs.k8s.io/yaml"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

const (
	// callTimeout bounds a call to the API server, probeTimeout one to a health endpoint.
	callTimeout  = 30 * time.Second
	probeTimeout = 2 * time.Second
	startTimeout = time.Minute
	stopGrace    = 10 * time.Second
)

// ports are those that the operator listens on, all of the loopback interface.
type ports struct{ webhooks, metrics, health int }

func (p ports) readyURL() string { return "http://" + loopback(p.health) + "/readyz" }

// loopbackAddress is where everything listens, but for what machines on a hypervisor elsewhere
// have to reach.
const loopbackAddress = "127.0.0.1"

func loopback(port int) string { return net.JoinHostPort(loopbackAddress, strconv.Itoa(port)) }

// pickPorts finds ports that nobody listens on. They are held until all are picked, so
// that they differ.
func pickPorts(ctx context.Context) (ports, error) {
	var (
		p    ports
		held []net.Listener
	)

	defer func() {
		for _, listener := range held {
			_ = listener.Close()
		}
	}()

	for _, port := range []*int{&p.webhooks, &p.metrics, &p.health} {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopback(0))
		if err != nil {
			return ports{}, fmt.Errorf("pick a free port: %w", err)
		}

		held = append(held, listener)

		address, ok := listener.Addr().(*net.TCPAddr)
		if !ok {
			return ports{}, fmt.Errorf("pick a free port: %s is no TCP address", listener.Addr())
		}

		*port = address.Port
	}

	return p, nil
}

// operatorConfig is the operator's configuration file. What is not in it keeps its
// default, as in a cluster.
func (s *stack) operatorConfig() ([]byte, error) {
	// The simulator is on this machine, where nothing is called that is not listed.
	runners := map[string]any{"platformURLs": []string{s.setting.forgeURL}}
	if _, ok := s.faultsOf(ownerForge); ok {
		// Jobs whose webhooks are lost are asked for at the CI platform. The default is
		// right for a platform that loses few.
		runners["jobSilence"] = "10s"
	}

	if s.options.anyFault() {
		runners["orphanInterval"], runners["orphanAge"] = "10s", "10s"
	}

	webhooks := map[string]any{"bindAddress": s.forMachines(s.ports.webhooks), "url": s.hooksURL()}
	guest := map[string]any{"url": s.guestURL()}

	if s.gate == nil {
		webhooks["ownAuthority"] = false // nobody else listens on loopback
	} else {
		webhooks["certFile"], webhooks["keyFile"] = s.gate.certFile, s.gate.keyFile
		guest["caFile"] = s.gate.certFile
	}

	file := map[string]any{
		"apiVersion":  config.APIVersion,
		"kind":        config.KindOperatorConfig,
		"operatorUID": operatorUID,
		"namespace":   namespace,
		"controllers": []string{"runners"},
		"log":         map[string]any{"level": s.options.LogLevel, "format": "json"},
		"metrics":     map[string]any{"bindAddress": loopback(s.ports.metrics)},
		"health":      map[string]any{"bindAddress": loopback(s.ports.health)},
		"webhooks":    webhooks,
		"guest":       guest,
		"runners":     runners,
	}

	text, err := yaml.Marshal(file)
	if err != nil {
		return nil, fmt.Errorf("write operator configuration: %w", err)
	}

	return text, nil
}

// startOperator starts this executable again as the operator, under the roles that were
// generated for it and nothing more.
func (s *stack) startOperator(ctx context.Context) (string, error) {
	text, err := s.operatorConfig()
	if err != nil {
		return "", err
	}

	configPath, kubeconfig := filepath.Join(s.dir, "operator.yaml"), filepath.Join(s.dir, "operator.kubeconfig")
	if err := writePrivate(configPath, text); err != nil {
		return "", err
	}

	account, err := s.kube.ServiceAccountConfig(ctx, namespace, serviceAccount)
	if err != nil {
		return "", fmt.Errorf("make the operator's credentials: %w", err)
	}

	if err := kubeproc.WriteKubeconfig(kubeconfig, account); err != nil {
		return "", fmt.Errorf("write the operator's credentials: %w", err)
	}

	s.operator, err = s.launch(ctx, "operator", s.programs.hyperfleet,
		"operator", "--config", configPath, "--kubeconfig", kubeconfig)
	if err != nil {
		return "", err
	}

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	if err := awaitReady(ctx, s.operator, probe(s.ports.readyURL())); err != nil {
		return "", err
	}

	return fmt.Sprintf("process %d as service account %s/%s", s.operator.PID(), namespace, serviceAccount), nil
}

// probe asks a URL for a 200.
func probe(url string) func(context.Context) error {
	client := &http.Client{Timeout: probeTimeout, Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}

	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return fmt.Errorf("ask %s: %w", url, err)
		}

		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close() //nolint:errcheck // nothing was read

		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("ask %s: %s: %w", url, response.Status, errNotYet)
		}

		return nil
	}
}

func (s *stack) applyObjects(ctx context.Context) (string, error) {
	objects := s.setting.objects(s.options)

	// What is there before the operator has anything to do is somebody else's.
	var err error
	if s.baseline, err = s.hypervisor.withCalls(ctx); err != nil {
		return "", fmt.Errorf("look at the hypervisor: %w", err)
	}

	return fmt.Sprintf("%d objects", len(objects)), s.create(ctx, objects...)
}

// errNotReady is the state of an object whose condition Ready is not True.
var errNotReady = errors.New("not ready")
