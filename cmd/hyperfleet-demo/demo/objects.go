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
	testlibvirt "github.com/hyperfleet/hyperfleet/test/libvirt"
)

// Names and values of the objects that the demo creates.
const (
	namespace      = "hyperfleet-system"
	objectName     = "demo"
	templateName   = "hyperfleet-runner"
	secretProxmox  = "proxmox"
	secretForge    = "forge"
	secretWebhook  = "forge-webhook" //nolint:gosec // the name of a Secret, not a secret
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

// demoSettings has the URLs and credentials of the simulators. The objects are built from these values.
type demoSettings struct {
	proxmoxURL, proxmoxFingerprint string
	proxmoxTokenID                 string
	proxmoxTokenSecret             string
	// platform is the CI platform. forgeURL and forgeToken are its URL and credential.
	platform             platform
	forgeURL, forgeToken string
	webhookSecret        string
	real                 *realSettings    // nil unless the hypervisor is a real Proxmox VE
	libvirt              *libvirtSettings // nil unless the hypervisor is libvirt
}

// newObjects returns the objects that a user would apply: Secrets, HypervisorCluster,
// HypervisorMachineTemplate and RunnerPools.
func (s demoSettings) newObjects(o Options) []client.Object {
	pools := []client.Object{s.newPool(o)}
	if o.CompareWarm {
		pools = s.newWarmPools(o)
	}

	objects := []client.Object{
		newSecretObject(secretForge, map[string]string{keyToken: s.forgeToken}),
		newSecretObject(secretWebhook, map[string]string{keySecret: s.webhookSecret}),
		s.newCluster(o), s.newTemplate(o),
	}

	if s.libvirt == nil {
		objects = append(objects,
			newSecretObject(secretProxmox, map[string]string{keyTokenID: s.proxmoxTokenID, keyTokenSecret: s.proxmoxTokenSecret}))
	}

	return append(objects, pools...)
}

func newSecretObject(name string, data map[string]string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: data,
	}
}

func secretRef(name, key string) *v1alpha1.SecretValueSource {
	return &v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: name, Key: key}}
}

func (s demoSettings) newCluster(o Options) *v1alpha1.HypervisorCluster {
	cluster := &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: objectName},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: "proxmox",
			Endpoint: s.proxmoxURL,
			Credentials: v1alpha1.HypervisorCredentials{
				TokenID:     secretRef(secretProxmox, keyTokenID),
				TokenSecret: secretRef(secretProxmox, keyTokenSecret),
			},
			TLS:    &v1alpha1.HypervisorTLS{Fingerprint: s.proxmoxFingerprint},
			Limits: &v1alpha1.HypervisorLimits{ClonesPerStorage: int32(o.ParallelClones)}, //nolint:gosec // validated
		},
	}
	s.real.applyTo(&cluster.Spec)
	s.libvirt.applyTo(&cluster.Spec)

	return cluster
}

func (s demoSettings) newTemplate(o Options) *v1alpha1.HypervisorMachineTemplate {
	resources := v1alpha1.MachineResources{CPU: 1, Memory: resource.MustParse(machineMemory)}

	if o.hasRealMachines() {
		resources = v1alpha1.MachineResources{CPU: realCPUs, Memory: resource.MustParse(realMemory)}
	}

	return &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: objectName},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{
			HypervisorClusterRef: v1alpha1.LocalObjectReference{Name: objectName},
			Template:             s.newTemplateSource(),
			Resources:            resources,
			Bootstrap: v1alpha1.Bootstrap{
				Method: v1alpha1.BootstrapRunnerToken,
				Config: s.platform.bootstrap(s),
			},
		},
	}
}

func (s demoSettings) newTemplateSource() v1alpha1.TemplateSource {
	linked := true

	if s.libvirt != nil {
		return v1alpha1.TemplateSource{Libvirt: &v1alpha1.LibvirtTemplate{Domain: testlibvirt.TemplateName, LinkedClone: &linked}}
	}

	return v1alpha1.TemplateSource{
		Proxmox: s.real.templateSource(v1alpha1.ProxmoxTemplate{TemplateName: templateName, LinkedClone: &linked}),
	}
}

func (s demoSettings) newPool(o Options) *v1alpha1.RunnerPool {
	work := s.platform.workload(s, s.platform.labels)
	work.Webhook = &v1alpha1.Webhook{Secret: *secretRef(secretWebhook, keySecret)}

	var demand *v1alpha1.DemandSources
	if o.hasForgeFault() {
		// The operator finds jobs with a lost webhook by polling. The default interval is too long for a
		// demo that loses many webhooks.
		demand = &v1alpha1.DemandSources{Polling: &v1alpha1.Polling{Interval: &metav1.Duration{Duration: jobPollInterval}}}
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

// jobPollInterval is the interval at which the operator polls the CI platform for jobs with lost webhooks.
const jobPollInterval = 5 * time.Second

// scaleDownDelay is short, because the demo waits for the deletion of machines that have no job.
const scaleDownDelay = 2 * time.Second
