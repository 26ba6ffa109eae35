package deploy_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

// valueSets are the values that the chart is tried with.
var valueSets = map[string]string{
	"least": `
publicURL: https://hub.example.org
database: {secret: kith-database}
`,
	"everything": `
publicURL: https://hub.example.org
database: {secret: kith-database, key: address}
replicas: 5
region: eu-west
image: {repository: registry.example.org/kith, tag: "1.2.3"}
imagePullSecrets: [{name: registry}]
proxies: ["10.0.0.0/8", "fd00::/8"]
config: |
  [limits]
  wait = "90s"
  [ratelimit]
  rps = 10
journal: {size: 20Gi, storageClass: fast}
env: [{name: GOMEMLIMIT, value: 6GiB}]
service: {type: LoadBalancer, port: 443, annotations: {a: b}}
ingress: {enabled: true, className: nginx, tlsSecret: kith-tls, annotations: {x: "y"}}
networkPolicy: {enabled: true, metricsNamespaces: [monitoring, other]}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
prometheusRule: {enabled: true, labels: {release: prometheus}}
nodeSelector: {disk: ssd}
tolerations: [{key: hubs, operator: Exists}]
topologySpreadConstraints: [{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}]
podAnnotations: {note: text}
`,
	"one hub, no volume": `
publicURL: http://kith.local
database: {secret: kith-database}
replicas: 1
journal: {enabled: false, size: 1Gi}
podDisruptionBudget: {enabled: false}
`,
}

// objects is what the chart makes, by kind.
type objects struct {
	hubs     appsv1.StatefulSet
	config   corev1.ConfigMap
	services []corev1.Service
	ingress  networkingv1.Ingress
	budget   policyv1.PodDisruptionBudget
	policy   networkingv1.NetworkPolicy
	kinds    map[string]int
}

func TestHelm(t *testing.T) {
	for name, text := range valueSets {
		t.Run(name, func(t *testing.T) {
			var values map[string]any
			ok(t, yaml.Unmarshal([]byte(text), &values))
			linted := lint.All("helm/kith", values, "kith", true)
			for _, m := range linted.Messages {
				if m.Severity > support.InfoSev {
					t.Error(m)
				}
			}
			o := render(t, values)
			checkHubs(t, o)
			checkHubFile(t, o.config.Data["hub.toml"])
			for _, kind := range []string{"Ingress", "NetworkPolicy", "ServiceMonitor", "PrometheusRule"} {
				if got := o.kinds[kind] == 1; got != (name == "everything") {
					t.Errorf("%s: %v", kind, got)
				}
			}
			if volume := len(o.hubs.Spec.VolumeClaimTemplates) == 1; volume != (name != "one hub, no volume") {
				t.Errorf("the journal has a volume: %v", volume)
			}
		})
	}
}

// TestHelmRefuses: values that no hub can run with are refused before anything is installed.
func TestHelmRefuses(t *testing.T) {
	chart := value(loader.Load("helm/kith"))(t)
	for _, text := range []string{
		`{}`, `{publicURL: hub.example.org, database: {secret: a}}`, `{publicURL: "https://a.example"}`,
		`{publicURL: "https://a.example", database: {secret: a}, replica: 3}`, `{publicURL: "https://a.example", database: {secret: a}, replicas: 0}`,
	} {
		var values map[string]any
		ok(t, yaml.Unmarshal([]byte(text), &values))
		if _, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "a"}, nil); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// render renders the chart and decodes each object strictly: an unknown field fails.
func render(t *testing.T, values map[string]any) (o objects) {
	t.Helper()
	chart := value(loader.Load("helm/kith"))(t)
	complete, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "kith", Namespace: "kith", IsInstall: true}, nil)
	ok(t, err)
	files, err := engine.Render(chart, complete)
	ok(t, err)
	o.kinds = make(map[string]int)
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(file, ".txt") || strings.Contains(file, "/_") {
			continue
		}
		for text := range strings.SplitSeq(files[file], "\n---") {
			if strings.TrimSpace(text) == "" {
				continue
			}
			var head struct{ Kind string }
			if err := yaml.Unmarshal([]byte(text), &head); err != nil {
				t.Fatalf("%s: %v\n%s", file, err, text)
			}
			o.kinds[head.Kind]++
			if err := o.decode(head.Kind, text); err != nil {
				t.Errorf("%s: %s: %v\n%s", file, head.Kind, err, text)
			}
		}
	}
	return o
}

func (o *objects) decode(kind, text string) error {
	switch kind {
	case "StatefulSet":
		return yaml.UnmarshalStrict([]byte(text), &o.hubs)
	case "ConfigMap":
		return yaml.UnmarshalStrict([]byte(text), &o.config)
	case "Service":
		var s corev1.Service
		err := yaml.UnmarshalStrict([]byte(text), &s)
		o.services = append(o.services, s)
		return err
	case "Ingress":
		return yaml.UnmarshalStrict([]byte(text), &o.ingress)
	case "PodDisruptionBudget":
		return yaml.UnmarshalStrict([]byte(text), &o.budget)
	case "NetworkPolicy":
		return yaml.UnmarshalStrict([]byte(text), &o.policy)
	default: // of an operator: its types are not here
		var any map[string]any
		return yaml.UnmarshalStrict([]byte(text), &any)
	}
}

// checkHubs checks that the objects fit each other, and how far the hubs are shut in.
func checkHubs(t *testing.T, o objects) {
	t.Helper()
	pod := o.hubs.Spec.Template
	hub := pod.Spec.Containers[0]
	ports := make(map[string]int32)
	for _, p := range hub.Ports {
		ports[p.Name] = p.ContainerPort
	}
	for _, s := range o.services {
		for key, value := range s.Spec.Selector {
			if pod.Labels[key] != value {
				t.Errorf("service %s selects no hub by %s", s.Name, key)
			}
		}
		for _, p := range s.Spec.Ports {
			if ports[p.TargetPort.StrVal] == 0 {
				t.Errorf("service %s leads to port %q, which no hub has", s.Name, p.TargetPort.StrVal)
			}
		}
	}
	for key, value := range o.hubs.Spec.Selector.MatchLabels {
		if pod.Labels[key] != value {
			t.Errorf("the hubs are not selected by %s", key)
		}
	}
	if o.hubs.Spec.ServiceName != o.services[1].Name || o.services[1].Spec.ClusterIP != corev1.ClusterIPNone {
		t.Error("the hubs have no headless service")
	}
	for name, probe := range map[string]*corev1.Probe{"/healthz": hub.LivenessProbe, "/readyz": hub.ReadinessProbe} {
		if probe == nil || probe.HTTPGet.Path != name || ports[probe.HTTPGet.Port.StrVal] != 8702 {
			t.Errorf("no probe of %s", name)
		}
	}
	s, c := pod.Spec.SecurityContext, hub.SecurityContext
	if !*s.RunAsNonRoot || !*c.ReadOnlyRootFilesystem || *c.AllowPrivilegeEscalation || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Error("the hubs may do more than they need")
	}
	volumes := make(map[string]bool)
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
	}
	for _, v := range o.hubs.Spec.VolumeClaimTemplates {
		volumes[v.Name] = true
	}
	for _, m := range hub.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("%s is mounted and not there", m.Name)
		}
		delete(volumes, m.Name)
	}
	if len(volumes) > 0 {
		t.Errorf("nothing mounts %v", volumes)
	}
	if !slices.Contains(hub.Args, "--peer-address=$(POD_IP):8703") {
		t.Error("other hubs do not find this one by its address")
	}
}
