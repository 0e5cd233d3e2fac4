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
	// callTimeout is the timeout of a call to the API server, and probeTimeout that of a call to a health
	// endpoint.
	callTimeout     = 30 * time.Second
	probeTimeout    = 2 * time.Second
	startTimeout    = time.Minute
	stopGracePeriod = 10 * time.Second
)

// ports are the ports of the operator.
type ports struct{ webhooks, metrics, health int }

func (p ports) metricsURL() string { return "http://" + loopbackHostPort(p.metrics) + "/metrics" }
func (p ports) readyURL() string   { return "http://" + loopbackHostPort(p.health) + "/readyz" }

// loopbackAddress is the address on which all servers listen, except for servers that machines on a real
// hypervisor must reach.
const loopbackAddress = "127.0.0.1"

func loopbackHostPort(port int) string { return net.JoinHostPort(loopbackAddress, strconv.Itoa(port)) }

// pickPorts returns free ports. It keeps all of them open until the last one is picked, so that the ports
// differ.
func pickPorts(ctx context.Context) (ports, error) {
	var (
		p         ports
		listeners []net.Listener
	)

	defer func() {
		for _, listener := range listeners {
			_ = listener.Close()
		}
	}()

	for _, port := range []*int{&p.webhooks, &p.metrics, &p.health} {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopbackHostPort(0))
		if err != nil {
			return ports{}, fmt.Errorf("pick a free port: %w", err)
		}

		listeners = append(listeners, listener)

		address, ok := listener.Addr().(*net.TCPAddr)
		if !ok {
			return ports{}, fmt.Errorf("pick a free port: %s is not a TCP address", listener.Addr())
		}

		*port = address.Port
	}

	return p, nil
}

// renderOperatorConfig returns the operator's configuration file. All other keys keep their defaults.
func (s *stack) renderOperatorConfig() ([]byte, error) {
	// The operator calls URLs on loopback addresses only if they are listed in platformURLs.
	runners := map[string]any{"platformURLs": []string{s.settings.forgeURL}}
	if _, ok := s.faultsFlag(injectorForge); ok {
		// The operator asks the CI platform about a job that has sent no webhook for this time. The default
		// is too long for a demo that loses many webhooks.
		runners["jobSilence"] = "10s"
	}

	if s.options.hasFault() {
		runners["orphanInterval"], runners["orphanAge"] = "10s", "10s"
	}

	webhooks := map[string]any{"bindAddress": s.machineListenAddress(s.ports.webhooks), "url": s.webhookBaseURL()}
	guest := map[string]any{"url": s.guestURL()}

	if s.machineAccess == nil {
		webhooks["ownAuthority"] = false // TLS is not needed on loopback
	} else {
		webhooks["certFile"], webhooks["keyFile"] = s.machineAccess.certFile, s.machineAccess.keyFile
		guest["caFile"] = s.machineAccess.certFile
	}

	file := map[string]any{
		"apiVersion":  config.APIVersion,
		"kind":        config.KindOperatorConfig,
		"operatorUID": operatorUID,
		"namespace":   namespace,
		"controllers": []string{"runners"},
		"log":         map[string]any{"level": s.options.LogLevel, "format": "json"},
		"metrics":     map[string]any{"bindAddress": loopbackHostPort(s.ports.metrics)},
		"health":      map[string]any{"bindAddress": loopbackHostPort(s.ports.health)},
		"webhooks":    webhooks,
		"guest":       guest,
		"runners":     runners,
	}

	text, err := yaml.Marshal(file)
	if err != nil {
		return nil, fmt.Errorf("encode operator configuration: %w", err)
	}

	return text, nil
}

// startOperator starts `hyperfleet operator` with the operator's ServiceAccount, which has only the RBAC
// roles in deploy/rbac. It returns a description of the process for the progress output.
func (s *stack) startOperator(ctx context.Context) (string, error) {
	text, err := s.renderOperatorConfig()
	if err != nil {
		return "", err
	}

	configPath, kubeconfig := filepath.Join(s.dir, "operator.yaml"), filepath.Join(s.dir, "operator.kubeconfig")
	if err := writePrivateFile(configPath, text); err != nil {
		return "", err
	}

	accountConfig, err := s.kube.ServiceAccountConfig(ctx, namespace, serviceAccount)
	if err != nil {
		return "", fmt.Errorf("create the operator's credentials: %w", err)
	}

	if err := kubeproc.WriteKubeconfig(kubeconfig, accountConfig); err != nil {
		return "", fmt.Errorf("write the operator's credentials: %w", err)
	}

	s.operator, err = s.launch(ctx, "operator", s.programs.hyperfleet,
		"operator", "--config", configPath, "--kubeconfig", kubeconfig)
	if err != nil {
		return "", err
	}

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	if err := waitForProbe(ctx, s.operator, newProbe(s.ports.readyURL())); err != nil {
		return "", err
	}

	return fmt.Sprintf("process %d as service account %s/%s", s.operator.PID(), namespace, serviceAccount), nil
}

// newProbe returns a probe that succeeds if the URL returns the status 200.
func newProbe(url string) func(context.Context) error {
	client := &http.Client{Timeout: probeTimeout, Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}

	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return fmt.Errorf("probe %s: %w", url, err)
		}

		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close() //nolint:errcheck // the body is not read

		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("probe %s: %s: %w", url, response.Status, errProbeNotReady)
		}

		return nil
	}
}

func (s *stack) applyObjects(ctx context.Context) (string, error) {
	objects := s.settings.newObjects(s.options)

	// All VMs and ISOs that exist before the operator starts to work have other owners.
	var err error
	if s.baseline, err = s.hypervisor.stateWithCalls(ctx); err != nil {
		return "", fmt.Errorf("read the hypervisor's state: %w", err)
	}

	return fmt.Sprintf("%d objects", len(objects)), s.createObjects(ctx, objects...)
}

// errNotReady is returned for an object whose condition Ready is not True.
var errNotReady = errors.New("not ready")
