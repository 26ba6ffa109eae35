package cli

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/shirou/gopsutil/v4/disk"
)

// metrics returns the metrics for GET /metrics: the hub's and those of its process.
func (p *hubProcess) metrics() *prometheus.Registry {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kith_build_info", Help: "The version of this hub; the value is always 1.",
		ConstLabels: prometheus.Labels{"version": thisBuild().Version},
	})
	build.Set(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		build,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kith_data_free_bytes", Help: "Free space of the disk with the data folder; 0 if it cannot be read.",
		}, func() float64 {
			usage, err := disk.Usage(p.config.Hub.Data)
			if err != nil {
				return 0
			}
			return float64(usage.Free)
		}),
	)
	for name, g := range map[string]struct {
		help  string
		value func(held, limit int) int
	}{
		"kith_client_held_max":   {"The most connections, or behind a proxy requests, that one client holds now.", func(held, _ int) int { return held }},
		"kith_client_held_limit": {"How many of them one client may hold; 0 is any number.", func(_, limit int) int { return limit }},
	} {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: g.help}, func() float64 {
			return float64(g.value(p.clients.Fullest()))
		}))
	}
	registry.MustRegister(p.hub.Metrics()...)
	if p.certificate != nil {
		registry.MustRegister(certificateEnd{p.certificate})
	}
	return registry
}

// certificateEnd is the metric with the certificate's expiry.
type certificateEnd struct{ certificateSource }

var certificateEndDesc = prometheus.NewDesc("kith_certificate_expiry_timestamp_seconds", "When the certificate of [tls] ends; absent without one.", nil, nil)

// Describe implements prometheus.Collector.
func (certificateEnd) Describe(descs chan<- *prometheus.Desc) { descs <- certificateEndDesc }

// Collect implements prometheus.Collector.
func (c certificateEnd) Collect(out chan<- prometheus.Metric) {
	if end := c.Expires(); !end.IsZero() {
		out <- prometheus.MustNewConstMetric(certificateEndDesc, prometheus.GaugeValue, float64(end.Unix()))
	}
}
