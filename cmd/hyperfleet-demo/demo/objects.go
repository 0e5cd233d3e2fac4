// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Names of what the demo makes.
const (
	namespace      = "hyperfleet-system"
	objectName     = "demo"
	templateName   = "hyperfleet-runner"
	secretProxmox  = "proxmox"
	secretForge    = "forge"
	secretWebhook  = "forge-webhook" //nolint:gosec // the name of a Secret, not one
	repository     = "acme/shop"
	organization   = "acme"
	queue          = "default"
	operatorUID    = "demo"
	machineMemory  = "512Mi"
	keyTokenID     = "tokenId"
	keyTokenSecret = "tokenSecret"
	keyToken       = "token"
	keySecret      = "secret"
)

// setting is what the objects are made from: where the simulators are, and the
// credentials that each of them was started with.
type setting struct {
	proxmoxURL, proxmoxFingerprint string
	proxmoxTokenID                 string
	proxmoxTokenSecret             string
	// platform, its URL and its credential.
	platform             platform
	forgeURL, forgeToken string
	webhookSecret        string
	real                 *realSetting // nil on the simulator
}

// objects are what a user applies: Secrets, cluster, template, pool.
func (s setting) objects(o Options) []client.Object {
	pools := []client.Object{s.pool(o)}
	if o.CompareWarm {
		pools = s.warmPools(o)
	}

	return append([]client.Object{
		secret(secretProxmox, map[string]string{keyTokenID: s.proxmoxTokenID, keyTokenSecret: s.proxmoxTokenSecret}),
		secret(secretForge, map[string]string{keyToken: s.forgeToken}),
		secret(secretWebhook, map[string]string{keySecret: s.webhookSecret}),
		s.cluster(o), s.template(o),
	}, pools...)
}

func secret(name string, data map[string]string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: data,
	}
}

func secretKey(name, key string) *v1alpha1.SecretValueSource {
	return &v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: name, Key: key}}
}

func (s setting) cluster(o Options) *v1alpha1.HypervisorCluster {
	cluster := &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: objectName},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: "proxmox",
			Endpoint: s.proxmoxURL,
			Credentials: v1alpha1.HypervisorCredentials{
				TokenID:     secretKey(secretProxmox, keyTokenID),
				TokenSecret: secretKey(secretProxmox, keyTokenSecret),
			},
			TLS:    &v1alpha1.HypervisorTLS{Fingerprint: s.proxmoxFingerprint},
			Limits: &v1alpha1.HypervisorLimits{ClonesPerStorage: int32(o.ParallelClones)}, //nolint:gosec // validated
		},
	}
	s.real.apply(&cluster.Spec)

	return cluster
}

func (s setting) template(o Options) *v1alpha1.HypervisorMachineTemplate {
	linked := true
	resources := v1alpha1.MachineResources{CPU: 1, Memory: resource.MustParse(machineMemory)}

	if o.real() {
		resources = v1alpha1.MachineResources{CPU: realCPUs, Memory: resource.MustParse(realMemory)}
	}

	return &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: objectName},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{
			HypervisorClusterRef: v1alpha1.LocalObjectReference{Name: objectName},
			Template: v1alpha1.TemplateSource{
				Proxmox: s.real.source(v1alpha1.ProxmoxTemplate{TemplateName: templateName, LinkedClone: &linked}),
			},
			Resources: resources,
			Bootstrap: v1alpha1.Bootstrap{
				Method: v1alpha1.BootstrapRunnerToken,
				Config: s.platform.bootstrap(s),
			},
		},
	}
}

func (s setting) pool(o Options) *v1alpha1.RunnerPool {
	work := s.platform.workload(s, s.platform.labels)
	work.Webhook = &v1alpha1.Webhook{Secret: *secretKey(secretWebhook, keySecret)}

	var demand *v1alpha1.DemandSources
	if o.forgeFault() {
		// Jobs whose first webhook is lost are found by asking. The default is right for a
		// platform that loses few.
		demand = &v1alpha1.DemandSources{Polling: &v1alpha1.Polling{Interval: &metav1.Duration{Duration: pollEvery}}}
	}

	return &v1alpha1.RunnerPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: objectName},
		Spec: v1alpha1.RunnerPoolSpec{
			Demand:      demand,
			TemplateRef: v1alpha1.LocalObjectReference{Name: objectName},
			Workload:    work,
			Scaling: v1alpha1.Scaling{
				MaxReplicas:    int32(o.Max), //nolint:gosec // validated
				ScaleDownDelay: &metav1.Duration{Duration: scaleDownDelay},
			},
		},
	}
}

// pollEvery is how often the platform is asked for jobs whose webhooks may be lost.
const pollEvery = 5 * time.Second

// scaleDownDelay is short: a machine that no job is left for would be waited for.
const scaleDownDelay = 2 * time.Second
